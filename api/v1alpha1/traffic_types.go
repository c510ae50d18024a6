// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MaxRevisions is the largest number of revisions in spec.traffic.
const MaxRevisions = 8

// HeaderTag is the header of requests that ask for the revision with a tag.
const HeaderTag = "Wangell-Tag"

// Revision is a service that gets a part of another service's requests.
type Revision struct {
	// Revision is the name of a WangellService in the same namespace, with balancing.level Request. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Revision string `json:"revision"`
	// Percent is its part of the requests, 0-100. Those of all revisions add up to 100. Default: 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 100",message="want a percentage from 0 to 100: write percent: 10, for example"
	Percent int32 `json:"percent,omitempty"`
	// Tag makes requests with the header Wangell-Tag: TAG go to this revision, whatever the percentages. At most 63 of
	// a-z, 0-9 and -, a letter or digit first and last.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="want at most 63 of a-z, 0-9 and -, a letter or digit first and last: write tag: canary, for example"
	Tag string `json:"tag,omitempty"`
}

// Sticky says how a client keeps its revision: by a header that distinguishes users, or by a cookie.
//
// +kubebuilder:validation:XValidation:rule="has(self.header) != has(self.cookie)",message="want header or cookie: write sticky: {cookie: revision}, for example"
// +kubebuilder:validation:XValidation:rule="!has(self.maxAge) || has(self.cookie)",message="maxAge is that of a cookie: write cookie: revision beside it, or leave it out"
type Sticky struct {
	// Header is the name of a request header. Requests with the same value go to the same revision; those without it are
	// each on their own.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9-]+$')",message="want the name of a header: write header: X-User, for example"
	Header string `json:"header,omitempty"`
	// Cookie is the name of a cookie. A client without it gets one with its first answer.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-]+$')",message="want the name of a cookie: write cookie: revision, for example"
	Cookie string `json:"cookie,omitempty"`
	// MaxAge is the number of seconds for which a client keeps the cookie, 1-31536000. Default: until the browser is
	// closed.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 31536000",message="want seconds from 1 to 31536000: write maxAge: 86400, for example"
	MaxAge int64 `json:"maxAge,omitempty"`
}
