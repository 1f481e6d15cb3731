{{/*
The number of workers. One that an autoscaler owns is what runs, where the cluster can be asked: to leave out a number
that stood there before would make it 1. Takes {ctx, name, pool}.
*/}}
{{- define "polyfleet.replicas" -}}
{{- $live := include "polyfleet.liveWorkers" . -}}
{{- if eq .pool.autoscaling.owner "none" -}}
replicas: {{ .pool.replicas }}
{{- else if $live -}}
replicas: {{ $live }}
{{- end -}}
{{- end -}}

{{/*
How many workers a pool is to have at least: an autoscaler's or DaemonSet's own number isn't known here. Takes a pool.
*/}}
{{- define "polyfleet.wantedWorkers" -}}
{{- if eq .kind "DaemonSet" }}1{{ else if eq .autoscaling.owner "none" }}{{ .replicas }}{{ else }}{{ .autoscaling.minReplicas }}{{ end -}}
{{- end -}}

{{/* The pools whose number of workers the scheduler sets, by name, as YAML. Takes the root context. */}}
{{- define "polyfleet.scaledPools" -}}
{{- $scaled := dict -}}
{{- range $name, $pool := include "polyfleet.pools" . | fromYaml -}}
{{- if eq $pool.autoscaling.owner "scheduler" }}{{ $_ := set $scaled $name (include "polyfleet.name" (dict "ctx" $ "component" (printf "worker-%s" $name))) }}{{ end -}}
{{- end -}}
{{- toYaml $scaled -}}
{{- end -}}

{{/* What the scheduler is told of the number of a pool's workers: {deployment, pool}. */}}
{{- define "polyfleet.poolAims" -}}
{{- with .pool.autoscaling -}}
kubernetes_deployment: {{ $.deployment }}, autoscaling: {min_workers: {{ .minReplicas }}, max_workers: {{ .maxReplicas }}, queue_seconds: {{ .queueSeconds }}, kv_use: {{ .kvUse }}, idle_seconds: {{ .idleSeconds }}, down_seconds: {{ .downSeconds }}}
{{- end -}}
{{- end -}}

{{/* How many workers the pool's Deployment in the cluster wants; empty where there is none, or no cluster. */}}
{{- define "polyfleet.liveWorkers" -}}
{{- $name := include "polyfleet.name" (dict "ctx" .ctx "component" (printf "worker-%s" .name)) -}}
{{- $spec := (lookup "apps/v1" "Deployment" .ctx.Release.Namespace $name).spec | default dict -}}
{{- if hasKey $spec "replicas" }}{{ int $spec.replicas }}{{ end -}}
{{- end -}}

{{/* Pools that serve one model share out its requests all together, or not at all. Takes the root context. */}}
{{- define "polyfleet.checkTraffic" -}}
{{- $pools := dict -}}
{{- $sums := dict -}}
{{- $without := dict -}}
{{- range $name, $pool := include "polyfleet.pools" . | fromYaml -}}
{{- $model := $pool.model.name | default $name -}}
{{- $_ := set $pools $model (append (index $pools $model | default list) $name) -}}
{{- if hasKey $pool "trafficPercent" }}{{ $_ := set $sums $model (add (index $sums $model | default 0) $pool.trafficPercent) }}{{ else }}{{ $_ := set $without $model true }}{{ end -}}
{{- end -}}
{{- range $model, $sum := $sums -}}
{{- if or (hasKey $without $model) (ne (int $sum) 100) -}}
{{- fail (printf "workers: the trafficPercent of the pools of model %s (%s) must add up to 100." $model (index $pools $model | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.checkAutoscaling" -}}
{{- $given := index .ctx.Values.workers .name | default dict -}}
{{- $live := include "polyfleet.liveWorkers" . | int -}}
{{- if and (eq .pool.autoscaling.owner "none") (not (hasKey $given "replicas")) (gt $live (int .pool.replicas)) (include "polyfleet.autoscaled" .) -}}
{{- fail (printf "workers.%s: an autoscaler has made it %d workers, and without it there would be %d: say how many in workers.%s.replicas." .name $live (int .pool.replicas) .name) -}}
{{- end -}}
{{- with .pool.autoscaling -}}
{{- if and (hasKey $given "replicas") (or (ne .owner "none") (ne $.pool.kind "Deployment")) -}}
{{- $owner := ternary "there is one worker per node" (printf "%s sets the number of workers" .owner) (ne $.pool.kind "Deployment") -}}
{{- fail (printf "workers.%s.replicas would do nothing, because %s: leave it out." $.name $owner) -}}
{{- end -}}
{{- if and (ne .owner "none") (ne $.pool.kind "Deployment") -}}
{{- fail (printf "workers.%s: a %s has one worker per node, so autoscaling.owner must be none." $.name $.pool.kind) -}}
{{- end -}}
{{- if and (lt (int .minReplicas) 1) (has .owner (list "hpa" "keda")) -}}
{{- fail (printf "workers.%s.autoscaling: minReplicas must be 1 or more with %s: without a worker nothing is measured that could wake one. The scheduler (owner) can." $.name .owner) -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "workers.%s.autoscaling: minReplicas is more than maxReplicas." $.name) -}}
{{- end -}}
{{- if and (gt (float64 .downSeconds) 3600.0) (has .owner (list "hpa" "keda")) -}}
{{- fail (printf "workers.%s.autoscaling: downSeconds must be 3600 or less with %s: Kubernetes looks back no further. The scheduler (owner) can." $.name .owner) -}}
{{- end -}}
{{- if and (eq .owner "keda") (not .prometheus) -}}
{{- fail (printf "workers.%s.autoscaling: keda needs prometheus, the address of Prometheus." $.name) -}}
{{- end -}}
{{- $model := $.pool.model.name | default $.name -}}
{{- if and (eq .owner "hpa") (not (regexMatch "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $model)) -}}
{{- fail (printf "workers.%s.model.name: an hpa finds the metrics of no model named %s, since the name is no value of a label: choose up to 63 letters, digits, '-', '_' and '.', or keda." $.name $model) -}}
{{- end -}}
{{- end -}}
{{- end -}}
