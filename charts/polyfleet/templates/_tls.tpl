{{/* TLS at the gateway's door and between the parts. */}}

{{/* Secret with the certificate of a role: {ctx, role}. */}}
{{- define "polyfleet.roleSecret" -}}
{{ index .ctx.Values.tls.internal.existingSecrets .role | default (include "polyfleet.name" (dict "ctx" .ctx "component" (printf "tls-%s" .role))) }}
{{- end -}}

{{/* Where a container has it. Takes what roleVolume does. */}}
{{- define "polyfleet.roleMount" -}}
{{- if .ctx.Values.tls.internal.enabled -}}
- {name: {{ .role }}-tls, mountPath: /etc/polyfleet/fleet-tls, readOnly: true}
{{- end -}}
{{- end -}}

{{/* The certificate of a role, where the parts speak TLS: {ctx, role}. */}}
{{- define "polyfleet.roleVolume" -}}
{{- if .ctx.Values.tls.internal.enabled -}}
- name: {{ .role }}-tls
  secret:
    secretName: {{ include "polyfleet.roleSecret" . | quote }}
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}, {key: ca.crt, path: ca.crt}]
    defaultMode: 0440
{{- end -}}
{{- end -}}

{{/* The worker's probes, over HTTP where gRPC needs a certificate. Takes {seconds (for loading), tls}. */}}
{{- define "polyfleet.workerProbes" -}}
{{- $ready := ternary "httpGet: {path: /readyz, port: metrics}" "grpc: {port: 50061}" .tls -}}
startupProbe: # serving: the model is loaded
  {{ $ready }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add .seconds 4) 5 }}
readinessProbe:
  {{ $ready }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe: # not lost by loading or draining
  {{ ternary "httpGet: {path: /healthz, port: metrics}" "grpc: {port: 50061, service: liveness}" .tls }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{- define "polyfleet.checkTls" -}}
{{- if and .enabled (eq (empty .existingSecret) (not .certManager.enabled)) -}}
{{- fail "tls.enabled needs either tls.existingSecret or tls.certManager.enabled." -}}
{{- end -}}
{{- if and .enabled .certManager.enabled (not .certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name." -}}
{{- end -}}
{{- if and (not .enabled) (or .existingSecret .certManager.enabled) -}}
{{- fail "tls.enabled is false, so that tls.existingSecret and tls.certManager would do nothing: leave them out." -}}
{{- end -}}
{{- end -}}

{{/* The console shows itself as an operator. */}}
{{- define "polyfleet.checkInternalTls" -}}
{{- $roles := list "gateway" "scheduler" "worker" -}}
{{- if .Values.console.enabled }}{{ $roles = append $roles "operator" }}{{ end -}}
{{- with .Values.tls.internal -}}
{{- $given := keys .existingSecrets | len -}}
{{- if and .enabled (or (and .certManager.enabled (gt $given 0)) (not (or .certManager.enabled (eq $given (len $roles))))) -}}
{{- fail (printf "tls.internal.enabled needs either tls.internal.existingSecrets of %s, or tls.internal.certManager.enabled." (join ", " $roles)) -}}
{{- end -}}
{{- if and .enabled .certManager.enabled (not .certManager.issuerRef.name) -}}
{{- fail "tls.internal.certManager.enabled needs tls.internal.certManager.issuerRef.name." -}}
{{- end -}}
{{- if and (not .enabled) (or (gt $given 0) .certManager.enabled) -}}
{{- fail "tls.internal.enabled is false, so that tls.internal.existingSecrets and tls.internal.certManager would do nothing: leave them out." -}}
{{- end -}}
{{- end -}}
{{- end -}}
