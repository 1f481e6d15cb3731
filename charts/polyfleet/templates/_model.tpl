{{/*
Where a pool's model is, as YAML: {kind, path, fetch}. path is what the worker loads. The model's volume is mounted at
/models; fetch are the init container's arguments, absent when nothing has to be fetched. Takes {name, pool}.
*/}}
{{- define "polyfleet.model" -}}
{{- $model := .pool.model -}}
{{- $kinds := list -}}
{{- range list "image" "pvc" "hostPath" "imageVolume" "hub" "s3" -}}
{{- if index $model . }}{{ $kinds = append $kinds . }}{{ end -}}
{{- end -}}
{{- if ne (len $kinds) 1 -}}
{{- $has := $kinds | join " and " | default "none" -}}
{{- fail (printf "workers.%s.model needs exactly one of image, pvc, hostPath, imageVolume, hub and s3; it has %s." .name $has) -}}
{{- end -}}
{{- $kind := first $kinds -}}
{{- $where := index $model $kind -}}
kind: {{ $kind }}
{{- if eq $kind "image" }}
path: {{ $where.path | toJson }}
{{- else if has $kind (list "hub" "s3") }}
{{- $source := printf "%s@%s" $where.repository ($where.revision | default "main") }}
{{- if eq $kind "s3" }}{{ $source = trimPrefix "s3://" $where.uri }}{{ end }}
{{- $folder := printf "/models/%s" (regexReplaceAll "[^A-Za-z0-9.@_-]+" $source "--" | trimSuffix "--") }}
path: {{ list $folder $where.path | compact | join "/" | toJson }}
fetch:
  - {{ $kind }}
  - {{ ternary $where.repository $where.uri (eq $kind "hub") | toJson }}
  - {{ printf "--into=%s" $folder | toJson }}
  {{- include "polyfleet.fetchOptions" $where | indent 2 }}
{{- else }}
path: {{ list "/models" $where.path | compact | join "/" | toJson }}
{{- end }}
{{- end -}}

{{/* Further arguments of the init container that fetches the model. Takes what hub or s3 are. */}}
{{- define "polyfleet.fetchOptions" -}}
{{- range $flag := list "revision" "include" "endpoint" "region" }}
{{- with index $ $flag }}
{{- range kindIs "slice" . | ternary . (list .) }}
- {{ printf "--%s=%s" $flag . | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- if or .tokenSecret .credentialsSecret }}
- --credentials=/etc/polyfleet/model-source
{{- end }}
{{- end -}}

{{/* The volume `models`, if the model is not in the image. Takes {ctx, name, pool, model}. */}}
{{- define "polyfleet.modelVolumes" -}}
{{- $where := index .pool.model .model.kind -}}
{{- $cache := .pool.model.cache | default dict -}}
{{- if ne .model.kind "image" }}
- name: models
  {{- if eq .model.kind "pvc" }}
  persistentVolumeClaim: {claimName: {{ $where.claimName | quote }}, readOnly: true}
  {{- else if eq .model.kind "hostPath" }}
  hostPath: {path: {{ $where.directory | toJson }}, type: Directory}
  {{- else if eq .model.kind "imageVolume" }}
  image:
    reference: {{ $where.reference | toJson }}
    {{- with $where.pullPolicy }}
    pullPolicy: {{ . }}
    {{- end }}
  {{- else if $cache.claimName }}
  persistentVolumeClaim: {claimName: {{ $cache.claimName | quote }}}
  {{- else if $cache.hostPath }}
  hostPath: {path: {{ $cache.hostPath | toJson }}, type: Directory}
  {{- else if $cache.sizeLimit }}
  emptyDir: {sizeLimit: {{ $cache.sizeLimit | quote }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- if .model.fetch }}
- name: fetch
  configMap:
    name: {{ include "polyfleet.name" (dict "ctx" .ctx "component" "fetch") | quote }}
{{- with $where.tokenSecret | default $where.credentialsSecret }}
- name: model-source
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}

{{/* Fetches the model before the worker starts, unless the cache has it. Takes {ctx, pool, model}. */}}
{{- define "polyfleet.fetchContainer" -}}
- name: fetch
  image: {{ include "polyfleet.image" (dict "ctx" .ctx "name" "scheduler") | quote }}
  imagePullPolicy: {{ .ctx.Values.image.pullPolicy }}
  command: [{{ include "polyfleet.init" . }}, python, /etc/polyfleet/fetch/fetch_model.py]
  args:
    {{- range .model.fetch }}
    {{- include "polyfleet.arg" . | nindent 4 }}
    {{- end }}
  env:
    {{- include "polyfleet.ownEnv" .pool.env | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 128Mi}
    limits: {memory: 512Mi}
  securityContext:
    {{- include "polyfleet.securityContext" dict | nindent 4 }}
  volumeMounts:
    - {name: fetch, mountPath: /etc/polyfleet/fetch, readOnly: true}
    {{- if has "--credentials=/etc/polyfleet/model-source" .model.fetch }}
    - {name: model-source, mountPath: /etc/polyfleet/model-source, readOnly: true}
    {{- end }}
    - {name: models, mountPath: /models}
    {{- with .pool.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
