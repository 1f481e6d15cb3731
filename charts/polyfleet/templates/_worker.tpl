{{/* Containers and volumes of a worker pod: {ctx, pool (its name), settings (the pool)}. One template for all accelerators. */}}
{{- define "polyfleet.workerContainers" -}}
{{- $model := include "polyfleet.model" (dict "name" .pool "pool" .settings) | fromYaml -}}
{{- $parts := dict "ctx" .ctx "pool" .settings "model" $model "name" .pool -}}
{{- if $model.fetch }}
initContainers:
  {{- include "polyfleet.fetchContainer" $parts | nindent 2 }}
{{- end }}
containers:
  {{- include "polyfleet.workerContainer" $parts | nindent 2 }}
  {{- if .ctx.Values.rayNode.enabled }}
  {{- $head := printf "%s:6379" (include "polyfleet.name" (dict "ctx" .ctx "component" "ray-head")) }}
  {{- $env := dict "RAY_HEAD" $head }}
  {{- $resources := printf `--resources={"polyfleet-%s": 1}` .settings.accelerator }}
  {{- $ray := dict "name" "ray-node" "script" "ray-node" "args" (list $resources) "env" $env }}
  {{- include "polyfleet.rayContainer" (merge $ray (dict "ctx" .ctx "resources" .ctx.Values.rayNode.resources)) | nindent 2 }}
  {{- end }}
volumes:
  {{- include "polyfleet.workerVolumes" $parts | nindent 2 }}
{{- end -}}

{{/* The worker itself. Takes {ctx, name, pool, model}. */}}
{{- define "polyfleet.workerContainer" -}}
- name: worker
  image: {{ .pool.image | default (include "polyfleet.image" (dict "ctx" .ctx "name" (printf "worker-%s" .pool.accelerator))) | quote }}
  imagePullPolicy: {{ .ctx.Values.image.pullPolicy }}
  command: [{{ include "polyfleet.init" . }}, python, -m, polyfleet.serving]
  args:
    {{- include "polyfleet.workerArgs" . | nindent 4 }}
  env:
    {{- include "polyfleet.podIP" . | nindent 4 }}
    {{- include "polyfleet.ownEnv" .pool.env | nindent 4 }}
  ports:
    - {name: worker, containerPort: 50061}
    - {name: metrics, containerPort: 9100}
    - {name: transfer, containerPort: 50062}
  {{- include "polyfleet.workerProbes" (dict "seconds" .pool.startupSeconds "tls" .ctx.Values.tls.internal.enabled) | nindent 2 }}
  resources:
    {{- $device := dict }}{{ with .pool.resource }}{{ $_ := set $device . (include "polyfleet.ranks" $.pool | int) }}{{ end }}
    requests:
      {{- toYaml (merge (dict) $device (.pool.resources.requests | default dict)) | nindent 6 }}
    limits:
      {{- toYaml (merge (dict) $device (.pool.resources.limits | default dict)) | nindent 6 }}
  securityContext:
    {{- include "polyfleet.securityContext" .pool.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "polyfleet.workerMounts" . | nindent 4 }}
{{- end -}}

{{/* Takes {ctx, name, pool, model}. */}}
{{- define "polyfleet.workerMounts" -}}
- {name: fleet, mountPath: /etc/polyfleet/fleet, readOnly: true}
{{- include "polyfleet.roleMount" (dict "ctx" .ctx "role" "worker") | nindent 0 }}
- {name: tmp, mountPath: /tmp}
{{- if gt (include "polyfleet.ranks" .pool | int) 1 }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- if ne .model.kind "image" }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- range $index, $path := .pool.hostMounts }}
- {name: host-{{ $index }}, mountPath: {{ $path | quote }}, readOnly: true}
{{- end }}
{{- with (.pool.options | default dict).diskCacheDir }}
- {name: disk-cache, mountPath: {{ . | quote }}}
{{- end }}
{{- with .pool.volumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* How many ranks compute the model, each on a device of its own. Takes a pool. */}}
{{- define "polyfleet.ranks" -}}
{{- max 1 (int (.options | default dict).tensorParallel) -}}
{{- end -}}

{{/* Takes {ctx, name, pool, model}. */}}
{{- define "polyfleet.workerVolumes" -}}
{{- include "polyfleet.fleetVolume" (dict "ctx" .ctx "role" "worker") }}
{{ include "polyfleet.roleVolume" (dict "ctx" .ctx "role" "worker") }}
- name: tmp
  emptyDir: {sizeLimit: 8Gi}
{{- if gt (include "polyfleet.ranks" .pool | int) 1 }}
- name: shm # what the ranks' collectives share; counts as the worker's memory
  emptyDir: {medium: Memory, sizeLimit: 1Gi}
{{- end }}
{{ include "polyfleet.modelVolumes" . | trim }}
{{- range $index, $path := .pool.hostMounts }}
- name: host-{{ $index }}
  hostPath: {path: {{ $path | quote }}}
{{- end }}
{{- $options := .pool.options | default dict }}
{{- if $options.diskCacheDir }}
- name: disk-cache
  {{- with .pool.diskCacheHostPath }}
  hostPath: {path: {{ . | quote }}, type: DirectoryOrCreate}
  {{- else }}
  emptyDir: {{ with $options.diskCacheMib }}{sizeLimit: {{ mul 2 . }}Mi}{{ else }}{}{{ end }}
  {{- end }}
{{- end }}
{{- with .pool.volumes }}
{{ toYaml . }}
{{- end }}
{{- if .ctx.Values.rayNode.enabled }}
{{ include "polyfleet.rayVolumes" .ctx }}
{{ include "polyfleet.roleVolume" (dict "ctx" .ctx "role" "scheduler") }}
- name: state
  emptyDir: {sizeLimit: 256Mi}
{{- end }}
{{- end -}}
