{{- /* Made from deploy/ by scripts/chart. */ -}}
{{- define "driver-manager.table" -}}
offered:
  ascend:
    rebooter: true
    rebooter-eviction: false
    clients: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
  nvidia:
    in-place: true
    eviction: true
    safe-load: false
    clients: false
    metrics: false
    openshift: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
  rebellions:
    in-place: true
    eviction: true
    safe-load: false
    clients: false
    metrics: false
    openshift: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
requires:
  rebooter-eviction:
  - rebooter
  openshift-rebooter:
  - openshift
  - rebooter
  openshift-rollout:
  - openshift
  - rollout
containers:
  k8s-driver-manager: manager
  driver: driver
  health-watch: healthWatch
  rebooter: rebooter
  controller: rollout
{{- end }}
