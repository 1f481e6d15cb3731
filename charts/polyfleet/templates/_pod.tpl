{{/* What all pods have in common: {ctx, settings, component, pool, grace}. Containers and volumes are their own. */}}
{{- define "polyfleet.podSpec" -}}
serviceAccountName: {{ include "polyfleet.serviceAccount" .ctx | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .grace | int64 }}
securityContext:
  {{- $groups := dict }}
  {{- with .settings.supplementalGroups }}{{ $_ := set $groups "supplementalGroups" . }}{{ end }}
  {{- include "polyfleet.overlay" (list .ctx.Values.podSecurityContext $groups) | nindent 2 }}
{{- with .ctx.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .settings.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.settings $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
topologySpreadConstraints:
  {{- include "polyfleet.spread" . | trim | nindent 2 }}
{{- end -}}

{{/* Over zones and nodes as far as possible, unless the settings say otherwise. Takes what podSpec does. */}}
{{- define "polyfleet.spread" -}}
{{- with .settings.topologySpreadConstraints }}
{{ toYaml . }}
{{- else }}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "polyfleet.selector" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Labels of a pod: {ctx, settings, component, pool}. No version of the chart: it alone should restart nothing. */}}
{{- define "polyfleet.podLabels" -}}
{{ include "polyfleet.selector" . }}
app.kubernetes.io/part-of: polyfleet
{{- with .settings.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
A container of the scheduler's image that runs a script of files/ around `ray start`: {ctx, name, script, args, env,
resources}. It ends with its volumeMounts, so that whoever includes it can add to these, then further keys.
*/}}
{{- define "polyfleet.rayContainer" -}}
- name: {{ .name }}
  image: {{ include "polyfleet.image" (dict "ctx" .ctx "name" "scheduler") | quote }}
  imagePullPolicy: {{ .ctx.Values.image.pullPolicy }}
  command: [{{ include "polyfleet.init" . }}, /bin/sh, -c]
  args:
    - |
      {{- .ctx.Files.Get (printf "files/%s.sh" .script) | trim | nindent 6 }}
    - {{ .script }}
    {{- range .args }}
    - {{ . | squote }}
    {{- end }}
    {{- include "polyfleet.rayArgs" . | nindent 4 }}
  env:
    {{- include "polyfleet.podIP" . | nindent 4 }}
    {{- $env := dict "HOME" "/tmp" "STATE_DIR" "/var/lib/polyfleet" "RAY_AUTH_MODE" "token" }}
    {{- $_ := set $env "RAY_AUTH_TOKEN_PATH" "/etc/polyfleet/ray/ray-token" }}
    {{- $_ = set $env "RAY_USAGE_STATS_ENABLED" "0" }}
    {{- $_ = set $env "RAY_ROTATION_MAX_BYTES" "10485760" }}
    {{- $_ = set $env "RAY_ROTATION_BACKUP_COUNT" "1" }}
    {{- include "polyfleet.env" (include "polyfleet.overlay" (list $env .env) | fromYaml) | trim | nindent 4 }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- include "polyfleet.securityContext" dict | nindent 4 }}
  volumeMounts:
    - {name: scheduler-fleet, mountPath: /etc/polyfleet/fleet, readOnly: true}
    - {name: ray, mountPath: /etc/polyfleet/ray, readOnly: true}
    {{- include "polyfleet.roleMount" (dict "ctx" .ctx "role" "scheduler") | nindent 4 }}
    - {name: state, mountPath: /var/lib/polyfleet}
    - {name: ray-tmp, mountPath: /tmp}
    - {name: ray-shm, mountPath: /dev/shm}
{{- end -}}

{{/* Arguments of `ray start`, the same everywhere. */}}
{{- define "polyfleet.rayArgs" -}}
- --node-ip-address=$(POD_IP)
- --node-manager-port=6380
- --object-manager-port=6381
- --runtime-env-agent-port=6382
- --dashboard-agent-grpc-port=6383
- --dashboard-agent-listen-port=6384
- --metrics-export-port=6385
- --min-worker-port=6400
- --max-worker-port=6499
- --num-cpus=0
- --num-gpus=0
- --object-store-memory=80000000
- --include-log-monitor=false
{{- end -}}

{{/* Of a container with Ray, which shows the others what the scheduler does. */}}
{{- define "polyfleet.rayVolumes" -}}
{{ include "polyfleet.fleetVolume" (dict "ctx" . "role" "scheduler" "name" "scheduler-fleet") }}
- name: ray
  secret:
    secretName: {{ include "polyfleet.fleetSecret" . | quote }}
    items: [{key: ray-token, path: ray-token}]
    defaultMode: 0440
- name: ray-tmp
  emptyDir: {sizeLimit: 2Gi}
- name: ray-shm
  emptyDir: {medium: Memory, sizeLimit: 128Mi}
{{- end -}}

{{/* The hashed keys alone, for the gateway and, because of its operators, the scheduler. */}}
{{- define "polyfleet.keysVolume" -}}
- name: keys
  secret:
    secretName: {{ include "polyfleet.keysSecret" .ctx | quote }}
    items: [{key: keys.yaml, path: keys.yaml}{{ with .more }}, {key: {{ . }}, path: {{ . }}}{{ end }}]
    defaultMode: 0440
{{- end -}}
