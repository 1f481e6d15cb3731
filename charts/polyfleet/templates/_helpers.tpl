{{/* Names: release and component, cut so that what Kubernetes appends still fits into 63 characters; no dots, as in Services. */}}
{{- define "polyfleet.name" -}}
{{- $base := .ctx.Values.fullnameOverride | default .ctx.Release.Name -}}
{{- if not (or .ctx.Values.fullnameOverride (contains .ctx.Chart.Name $base)) -}}
{{- $base = printf "%s-%s" $base .ctx.Chart.Name -}}
{{- end -}}
{{- $room := sub 51 (len .component) | int -}}
{{- printf "%s-%s" ($base | replace "." "-" | trunc $room | trimSuffix "-") .component -}}
{{- end -}}

{{/* Selector labels never change between versions. */}}
{{- define "polyfleet.selector" -}}
app.kubernetes.io/name: polyfleet
app.kubernetes.io/instance: {{ .ctx.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
polyfleet/pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "polyfleet.labels" -}}
{{ include "polyfleet.selector" . }}
app.kubernetes.io/version: {{ .ctx.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: polyfleet
app.kubernetes.io/managed-by: {{ .ctx.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .ctx.Chart.Name .ctx.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Metadata of an object: {ctx, component}, and pool or suffix where its name needs them. */}}
{{- define "polyfleet.metadata" -}}
name: {{ include "polyfleet.name" (dict "ctx" .ctx "component" (.name | default .component)) | quote }}
namespace: {{ .ctx.Release.Namespace | quote }}
labels:
  {{- include "polyfleet.labels" . | nindent 2 }}
{{- end -}}

{{/* An image of ours, by its name. */}}
{{- define "polyfleet.image" -}}
{{- $image := .ctx.Values.image -}}
{{- $path := list .ctx.Values.global.imageRegistry $image.repository .name | compact | join "/" -}}
{{- with index $image.digests .name -}}
{{- printf "%s@%s" $path . -}}
{{- else -}}
{{- printf "%s:%s" $path ($image.tag | default $.ctx.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.fleetAddress" -}}
{{ include "polyfleet.name" (dict "ctx" . "component" "scheduler") }}.{{ .Release.Namespace }}.svc:50052
{{- end -}}

{{- define "polyfleet.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "polyfleet.name" (dict "ctx" . "component" "pods")) }}
{{- end -}}

{{- define "polyfleet.fleetSecret" -}}
{{ .Values.fleetSecret | default (include "polyfleet.name" (dict "ctx" . "component" "fleet")) }}
{{- end -}}

{{- define "polyfleet.keysSecret" -}}
{{ .Values.auth.existingSecret | default (include "polyfleet.name" (dict "ctx" . "component" "keys")) }}
{{- end -}}

{{- define "polyfleet.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (include "polyfleet.name" (dict "ctx" . "component" "tls")) }}
{{- end -}}

{{/* Maps laid over each other, later ones on top, maps in them one level deep. Unlike sprig's merge it lets "" and 0 win. */}}
{{- define "polyfleet.overlay" -}}
{{- $result := dict -}}
{{- range $layer := . -}}
{{- range $key, $value := $layer -}}
{{- if and (kindIs "map" $value) (kindIs "map" (index $result $key)) -}}
{{- $both := deepCopy (index $result $key) -}}
{{- range $inner, $each := $value }}{{ $_ := set $both $inner $each }}{{ end -}}
{{- $_ := set $result $key $both -}}
{{- else -}}
{{- $_ := set $result $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $result -}}
{{- end -}}

{{/* The gateways' file of keys and tenants, of values with the chart's names. */}}
{{- define "polyfleet.keysFile" -}}
{{- $keys := list -}}
{{- range .keys -}}
{{- $key := omit . "maxPriority" -}}
{{- if hasKey . "maxPriority" }}{{ $_ := set $key "max_priority" (int .maxPriority) }}{{ end -}}
{{- $keys = append $keys $key -}}
{{- end -}}
{{- $tenants := list -}}
{{- range .tenants -}}
{{- $tenant := pick . "id" "weight" -}}
{{- if hasKey . "tokensPerMinute" }}{{ $_ := set $tenant "tokens_per_minute" (int64 .tokensPerMinute) }}{{ end -}}
{{- if hasKey . "maxConcurrent" }}{{ $_ := set $tenant "max_concurrent" (int64 .maxConcurrent) }}{{ end -}}
{{- $tenants = append $tenants $tenant -}}
{{- end -}}
{{- dict "keys" $keys "tenants" $tenants | toYaml -}}
{{- end -}}
