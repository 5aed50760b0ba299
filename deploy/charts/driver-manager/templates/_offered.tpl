{{- /* Made from deploy/ by scripts/chart. */ -}}
{{- define "driver-manager.table" -}}
offered:
  amd:
    rebooter: true
    rebooter-eviction: false
    clients: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
  ascend:
    rebooter: true
    rebooter-eviction: false
    clients: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
  furiosa:
    in-place: true
    eviction: true
    rebooter: false
    rebooter-eviction: false
    clients: false
    recovery: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
  gaudi:
    in-place: true
    eviction: true
    rebooter: false
    rebooter-eviction: false
    clients: false
    recovery: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
  nvidia:
    in-place: true
    eviction: true
    rebooter: false
    rebooter-eviction: false
    safe-load: false
    clients: false
    recovery: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
  rebellions:
    in-place: true
    eviction: true
    rebooter: false
    rebooter-eviction: false
    safe-load: false
    clients: false
    recovery: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
  tenstorrent:
    in-place: true
    eviction: true
    rebooter: false
    rebooter-eviction: false
    clients: false
    recovery: false
    node-condition: false
    metrics: false
    openshift: false
    openshift-rebooter: false
    resource-quota: false
    network-policy: false
    rollout: false
    openshift-rollout: false
    admission-policy: false
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
parts:
  driver: ''
  driver-rebooter: rebooter
  driver-rollout: rollout
{{- end }}
