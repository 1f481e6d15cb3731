{{/* A NetworkPolicy up to its rules, for one component (and one pool of it). */}}
{{- define "polyfleet.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "polyfleet.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "polyfleet.selector" . | nindent 6 }}
{{- end -}}

{{/* Pods of these components of this release: {ctx, components}. */}}
{{- define "polyfleet.peers" -}}
{{- range .components -}}
- podSelector:
    matchLabels:
      {{- include "polyfleet.selector" (dict "ctx" $.ctx "component" .) | nindent 6 }}
{{ end -}}
{{- end -}}

{{/* Ray's ports, between the head and the ray-node containers alone: {ctx, direction: from | to}. */}}
{{- define "polyfleet.rayTraffic" -}}
- ports:
    - {protocol: TCP, port: 6379, endPort: 6385}
    - {protocol: TCP, port: 6400, endPort: 6499}
  {{ .direction }}:
    {{- include "polyfleet.peers" (dict "ctx" .ctx "components" (list "scheduler" "worker")) | trim | nindent 4 }}
{{- end -}}

{{/* Who may read metrics at a port, if anybody may: {ctx, port}. */}}
{{- define "polyfleet.metricsTraffic" -}}
{{- with .ctx.Values.networkPolicy.metricsFrom -}}
- ports:
    - {protocol: TCP, port: {{ $.port }}}
  from:
    {{- toYaml . | nindent 4 }}
{{- end -}}
{{- end -}}
