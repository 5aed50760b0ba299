{{- /*
Whether a component is there: (list . "metrics"). By its value, and where that is null, as the vendor's overlay has it.
"true" or "".
*/ -}}
{{- define "driver-manager.has" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $table := include "driver-manager.table" $root | fromYaml }}
{{- $offered := index $table.offered $root.Values.vendor }}
{{- $needs := index $table.requires $component | default list }}
{{- $asked := index $root.Values (camelcase $component | untitle) }}
{{- $there := true }}
{{- range $needs }}{{ if not (include "driver-manager.has" (list $root .)) }}{{ $there = false }}{{ end }}{{ end }}
{{- if not (hasKey $offered $component) }}
{{- $there = false }}
{{- if and $asked $asked.enabled }}
{{- fail (printf "%s.enabled: vendor %s has no %s; set it to false or leave it out" (camelcase $component | untitle) $root.Values.vendor $component) }}
{{- end }}
{{- else if $asked }}
{{- $wanted := ternary $asked.enabled (index $offered $component) (kindIs "bool" $asked.enabled) }}
{{- if and $wanted (not $there) }}
{{- fail (printf "%s.enabled needs %s" (camelcase $component | untitle) (join " and " $needs)) }}
{{- end }}
{{- $there = $wanted }}
{{- end }}
{{- if $there }}true{{ end }}
{{- end }}

{{- /* The name of the driver DaemonSet, with which every other name begins. */ -}}
{{- define "driver-manager.fullname" -}}
{{- $name := printf "%s-driver" .Values.vendor }}
{{- with .Values.fullnameOverride }}
{{- if not (hasSuffix (print "-" $name) (print "-" .)) }}
{{- fail (printf "fullnameOverride: let it end with %s, by which the admission policies know the accounts" $name) }}
{{- end }}
{{- end }}
{{- .Values.fullnameOverride | default $name }}
{{- end }}

{{- /* The labels of every object. A pod's `instance` is its workload's name: selectors have it, and they cannot change. */ -}}
{{- define "driver-manager.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "driver-manager.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- define "driver-manager.driverImage" -}}
{{- with .Values.driver.image }}
{{- if and .repository (not (or .tag .digest)) }}{{ fail "driver.image.tag: say which version of your driver's image" }}{{ end }}
{{- if and .repository (not $.Values.driver.configDigest) }}
{{- fail "driver.configDigest: one word that changes whenever the driver has to be replaced, e.g. its version" }}
{{- end }}
{{- .repository | default "driver-manager-sample-driver" }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /*
The variables of a container that are given elsewhere: (list . CONTAINER). The steps of a recovery that need no approval; and for
health-watch, which checks before a reload whether users' pods may be evicted, the consents of the run.
*/ -}}
{{- define "driver-manager.shared" -}}
{{- $root := index . 0 }}
{{- $container := index . 1 }}
{{- $found := dict }}
{{- range $container.env }}{{ if and (eq .name "AUTO_RECOVER") $root.Values.recovery.auto }}
{{- $_ := set $found .name (join "," $root.Values.recovery.auto) }}
{{- end }}{{ end }}
{{- if eq $container.name "health-watch" }}{{ range $name, $value := $root.Values.manager.env }}{{ if contains "POD_EVICTION" $name }}
{{- $_ := set $found $name $value }}
{{- end }}{{ end }}{{ end }}
{{- toYaml $found }}
{{- end }}

{{- /* A workload with what the values say of its pod and its containers: (list . "driver-manager.driver"). */ -}}
{{- define "driver-manager.finished" -}}
{{- $root := index . 0 }}
{{- $object := include (index . 1) $root | fromYaml }}
{{- $template := $object.spec.template }}
{{- $table := include "driver-manager.table" $root | fromYaml }}
{{- $part := index $table.parts (index $template.metadata.labels "app.kubernetes.io/name") }}
{{- $isController := eq $part "rollout" }}
{{- $pod := $root.Values }}
{{- if $part }}{{ $pod = index $root.Values $part }}{{ end }}
{{- /* The rebooter's pods are on the nodes of the driver pods, whose values replace its empty ones. */ -}}
{{- if eq $part "rebooter" }}
{{- $own := dict }}
{{- range list "nodeSelector" "tolerations" "affinity" "priorityClassName" "podAnnotations" "podLabels" }}
{{- $_ := set $own . (index $pod . | default (index $root.Values .)) }}
{{- end }}
{{- $pod = $own }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $template.spec "imagePullSecrets" . }}{{ end }}
{{- if $isController }}{{ with $root.Values.rollout.replicas }}{{ $_ := set $object.spec "replicas" . }}{{ end }}{{ end }}
{{- with $pod.nodeSelector }}
{{- $_ := set $template.spec "nodeSelector" (merge (deepCopy .) ($template.spec.nodeSelector | default dict)) }}
{{- end }}
{{- with $pod.tolerations }}{{ $_ := set $template.spec "tolerations" . }}{{ end }}
{{- with $pod.affinity }}{{ $_ := set $template.spec "affinity" . }}{{ end }}
{{- with $pod.priorityClassName }}{{ $_ := set $template.spec "priorityClassName" . }}{{ end }}
{{- with $pod.podLabels }}{{ $_ := set $template.metadata "labels" (merge $template.metadata.labels .) }}{{ end }}
{{- with $pod.podAnnotations }}
{{- $_ := set $template.metadata "annotations" (merge ($template.metadata.annotations | default dict) .) }}
{{- end }}
{{- with ternary $root.Values.rollout.volumes $root.Values.volumes $isController }}
{{- $_ := set $template.spec "volumes" (concat $template.spec.volumes .) }}
{{- end }}
{{- range $container := concat ($template.spec.initContainers | default list) $template.spec.containers }}
{{- $own := index $root.Values (index $table.containers $container.name) }}
{{- if ne $container.name "driver" }}{{ $_ := set $container "imagePullPolicy" $root.Values.image.pullPolicy }}{{ end }}
{{- $env := list }}
{{- $given := include "driver-manager.shared" (list $root $container) | fromYaml | merge (deepCopy $own.env) }}
{{- range $container.env }}{{ if not (hasKey $given .name) }}{{ $env = append $env . }}{{ end }}{{ end }}
{{- range $name, $value := $given }}
{{- $env = append $env (merge (dict "name" $name) (ternary $value (dict "value" $value) (kindIs "map" $value))) }}
{{- end }}
{{- $_ := set $container "env" $env }}
{{- with $own.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- with $own.volumeMounts }}{{ $_ := set $container "volumeMounts" (concat ($container.volumeMounts | default list) .) }}{{ end }}
{{- if eq $container.name "driver" }}
{{- $_ := set $container "imagePullPolicy" $own.image.pullPolicy }}
{{- with $own.command }}{{ $_ := set $container "command" . }}{{ end }}
{{- with $own.args }}{{ $_ := set $container "args" . }}{{ end }}
{{- with $own.ready }}{{ $_ := set $container.startupProbe.exec "command" . }}{{ end }}
{{- with $own.stop }}{{ $_ := set $container.lifecycle.preStop.exec "command" . }}{{ end }}
{{- with $root.Values.clients.selector }}
{{- if not (include "driver-manager.has" (list $root "clients")) }}{{ fail "clients.selector needs clients.enabled" }}{{ end }}
{{- $_ := set $template.metadata.annotations "driver-manager.rebellions.ai/client-selector" . }}
{{- end }}
{{- if and $root.Values.recovery.auto (not (include "driver-manager.has" (list $root "recovery"))) }}
{{- fail "recovery.auto needs recovery.enabled" }}
{{- end }}
{{- if and (has "reboot" $root.Values.recovery.auto) (not (include "driver-manager.has" (list $root "rebooter"))) }}
{{- fail "reboot in recovery.auto needs rebooter.enabled" }}
{{- end }}
{{- with $own.configDigest }}{{ $_ := set $template.metadata.annotations "driver-manager.rebellions.ai/driver-config-digest" . }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml $object }}
{{- end }}
