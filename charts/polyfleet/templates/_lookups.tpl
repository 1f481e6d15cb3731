{{/* What the cluster already has decides: refusals that need one, each one sentence. */}}

{{/* Claims and the account that values name must be there. */}}
{{- define "polyfleet.checkClaims" -}}
{{- $wanted := list -}}
{{- with .Values.scheduler.persistence }}{{ $wanted = append $wanted (list "scheduler.persistence.existingClaim" .existingClaim) }}{{ end -}}
{{- range $name, $pool := include "polyfleet.pools" . | fromYaml -}}
{{- $wanted = append $wanted (list (printf "workers.%s.model.pvc.claimName" $name) ($pool.model.pvc | default dict).claimName) -}}
{{- $wanted = append $wanted (list (printf "workers.%s.model.cache.claimName" $name) ($pool.model.cache | default dict).claimName) -}}
{{- range $pool.volumes }}{{ $wanted = append $wanted (list (printf "workers.%s.volumes" $name) (.persistentVolumeClaim | default dict).claimName) }}{{ end -}}
{{- end -}}
{{- range $wanted -}}
{{- if and (index . 1) (not (lookup "v1" "PersistentVolumeClaim" $.Release.Namespace (index . 1))) -}}
{{- fail (printf "%s names the claim %s, which does not exist in the namespace %s: make it first." (index . 0) (index . 1) $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- $account := .Values.serviceAccount.name -}}
{{- if and $account (not (lookup "v1" "ServiceAccount" .Release.Namespace $account)) -}}
{{- fail (printf "serviceAccount.name names the account %s, which does not exist in the namespace %s: make it first." $account .Release.Namespace) -}}
{{- end -}}
{{- end -}}

{{/* What Kubernetes would refuse of a change to the chart's own claim. */}}
{{- define "polyfleet.checkStateClaim" -}}
{{- $name := include "polyfleet.name" (dict "ctx" . "component" "scheduler") -}}
{{- $live := (lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name).spec -}}
{{- with .Values.scheduler.persistence -}}
{{- if and $live .enabled (not .existingClaim) -}}
{{- $class := $live.storageClassName | default "" -}}
{{- if and .storageClass (ne .storageClass $class) -}}
{{- fail (printf "scheduler.persistence.storageClass: the claim %s has the class %s, which can't be changed to %s: leave it, or move the state to a claim of yours (existingClaim)." $name $class .storageClass) -}}
{{- end -}}
{{- $has := $live.resources.requests.storage -}}
{{- $more := subf (include "polyfleet.bytes" .size | float64) (include "polyfleet.bytes" $has | float64) -}}
{{- if lt $more 0.0 -}}
{{- fail (printf "scheduler.persistence.size: the claim %s has %s and can't shrink to %v: leave the size as it is." $name $has .size) -}}
{{- end -}}
{{- if and (gt $more 0.0) ($.Capabilities.APIVersions.Has "storage.k8s.io/v1/StorageClass") -}}
{{- if not (lookup "storage.k8s.io/v1" "StorageClass" "" $class).allowVolumeExpansion -}}
{{- fail (printf "scheduler.persistence.size: the claim %s has %s, and its storage class %s lets no claim grow to %v: leave the size as it is, or move the state to a claim of yours (existingClaim)." $name $has $class .size) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "polyfleet.bytes" -}}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $units = merge $units (dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0) -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- mulf (float64 $number) (index $units (trimPrefix $number (toString .)) | default 1.0) | printf "%f" -}}
{{- end -}}

{{/* Secrets that values name must be there, with their keys. */}}
{{- define "polyfleet.checkSecrets" -}}
{{- $namespace := .Release.Namespace -}}
{{- $wanted := list -}}
{{- with .Values.fleetSecret }}{{ $wanted = append $wanted (list "fleetSecret" . "fleet-token" "ray-token") }}{{ end -}}
{{- range $role, $name := .Values.tls.internal.existingSecrets }}{{ $wanted = append $wanted (list (printf "tls.internal.existingSecrets.%s" $role) $name "tls.crt" "tls.key" "ca.crt") }}{{ end -}}
{{- if .Values.fleetKeys.enabled }}{{ with .Values.fleetSecret }}{{ $wanted = append $wanted (list "fleetSecret" . "gateway-token" "scheduler-token" "worker-token" "operator-token" "fleet-keys.yaml") }}{{ end }}{{ end -}}
{{- with .Values.auth.existingSecret }}{{ $wanted = append $wanted (list "auth.existingSecret" . "keys.yaml" "api-key") }}{{ end -}}
{{- with .Values.tls.existingSecret }}{{ $wanted = append $wanted (list "tls.existingSecret" . "tls.crt" "tls.key") }}{{ if $.Values.console.enabled }}{{ $wanted = append $wanted (list "tls.existingSecret" . "ca.crt") }}{{ end }}{{ end -}}
{{- range .Values.global.imagePullSecrets }}{{ $wanted = append $wanted (list "global.imagePullSecrets" .) }}{{ end -}}
{{- range $name, $pool := include "polyfleet.pools" . | fromYaml -}}
{{- with ($pool.model.hub | default dict).tokenSecret }}{{ $wanted = append $wanted (list (printf "workers.%s.model.hub.tokenSecret" $name) . "token") }}{{ end -}}
{{- with ($pool.model.s3 | default dict).credentialsSecret }}{{ $wanted = append $wanted (list (printf "workers.%s.model.s3.credentialsSecret" $name) . "access-key-id" "secret-access-key") }}{{ end -}}
{{- end -}}
{{- range $wanted -}}
{{- $found := lookup "v1" "Secret" $namespace (index . 1) -}}
{{- if not $found -}}
{{- fail (printf "%s names the Secret %s, which does not exist in the namespace %s: make it first." (index . 0) (index . 1) $namespace) -}}
{{- end -}}
{{- $where := . -}}
{{- range slice . 2 -}}
{{- if not (hasKey ($found.data | default dict) .) -}}
{{- fail (printf "%s: the Secret %s has no key %s." (index $where 0) (index $where 1) .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether an autoscaler of ours for the pool is in the cluster. Takes {ctx, name}. */}}
{{- define "polyfleet.autoscaled" -}}
{{- $name := include "polyfleet.name" (dict "ctx" .ctx "component" (printf "worker-%s" .name)) -}}
{{- range $api, $kind := dict "autoscaling/v2" "HorizontalPodAutoscaler" "keda.sh/v1alpha1" "ScaledObject" -}}
{{- if $.ctx.Capabilities.APIVersions.Has (printf "%s/%s" $api $kind) -}}
{{- if lookup $api $kind $.ctx.Release.Namespace $name }}yes{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
