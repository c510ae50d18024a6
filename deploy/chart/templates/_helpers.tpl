{{- define "wangell.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if .Values.nameOverride -}}
{{- printf "%s-%s" .Release.Name .Values.nameOverride | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select objects. Argument: dict "root" . "component" NAME */}}
{{- define "wangell.selector" -}}
app.kubernetes.io/name: wangell
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* All labels. Argument as above; without a component, for objects that both components use. */}}
{{- define "wangell.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: wangell
{{- if .component }}
{{ include "wangell.selector" . }}
{{- else }}
app.kubernetes.io/name: wangell
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
{{- end -}}

{{/* A released chart has the digest of its image as an annotation, which another tag replaces. */}}
{{- define "wangell.image" -}}
{{- $released := index (.Chart.Annotations | default dict) "wangell.loutres.me/image-digest" -}}
{{- with .Values.image -}}
{{- $digest := .digest | default (ternary "" $released (ne .tag "")) -}}
{{ .repository }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "wangell.envoyImage" -}}
{{- with .Values.requests.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The name of the cache of a registry. Argument: dict "root" . "registry" NAME */}}
{{- define "wangell.cacheName" -}}
{{- $registry := .registry | replace "." "-" | replace ":" "-" -}}
{{- printf "%s-cache-%s" (include "wangell.fullname" .root | trunc 32 | trimSuffix "-") $registry | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "wangell.keySecret" -}}
{{- .Values.wire.existingSecret | default (printf "%s-wire" (include "wangell.fullname" .)) -}}
{{- end -}}

{{/* The 32 bytes of the wire's master key in base64: those of the existing Secret, or new ones. */}}
{{- define "wangell.key" -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace (include "wangell.keySecret" .) -}}
{{- if and $there $there.data (index $there.data "wire.key") -}}
{{- index $there.data "wire.key" -}}
{{- else -}}
{{- randBytes 32 -}}
{{- end -}}
{{- end -}}

{{/* Not empty if the leader keeps the list of nodes of a NetworkPolicy. */}}
{{- define "wangell.keepsNodes" -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.nodeCIDRs) }}true{{ end -}}
{{- end -}}
