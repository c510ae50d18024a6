// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/api/v1alpha1"
)

// reviewsAtOnce bounds the namespaces that are reviewed concurrently.
const reviewsAtOnce = 16

// right is an action that a user wants to perform. An empty namespace means all.
type right struct{ verb, group, resource, subresource, namespace, name string }

func listServices(namespace string) right {
	return right{verb: "list", group: v1alpha1.GroupVersion.Group, resource: "wangellservices", namespace: namespace}
}

// sleepService is the right to scale a service, which includes to zero.
func sleepService(namespace, name string) right {
	return right{
		verb: "patch", group: v1alpha1.GroupVersion.Group, resource: "wangellservices", subresource: "scale",
		namespace: namespace, name: name,
	}
}

func readLogs(namespace string) right {
	return right{verb: "get", resource: "pods", subresource: "log", namespace: namespace}
}

// rights asks the API server for the rights of users.
type rights struct {
	api  kubernetes.Interface
	now  func() time.Time
	seen cache[question, bool]
}

// question is a right of a user.
type question struct {
	user string // as JSON
	right
}

// may reports whether a user has a right.
func (r *rights) may(ctx context.Context, u *authenticationv1.UserInfo, want right) (bool, error) {
	text, err := json.Marshal(u) // maps are sorted
	if err != nil {
		return false, err
	}
	return r.seen.get(question{string(text), want}, r.now(), func() (bool, error) {
		extra := map[string]authorizationv1.ExtraValue{}
		for k, v := range u.Extra {
			extra[k] = authorizationv1.ExtraValue(v)
		}
		review, err := r.api.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: want.namespace, Verb: want.verb, Group: want.group, Resource: want.resource,
					Subresource: want.subresource, Name: want.name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, unavailable("review of the rights of "+u.Username, err)
		}
		return review.Status.Allowed, nil
	})
}

// visible returns the namespaces in which a user may list services.
func (r *rights) visible(
	ctx context.Context, u *authenticationv1.UserInfo, namespaces map[string]bool,
) (map[string]bool, error) {
	var mu sync.Mutex
	var first error
	out := map[string]bool{}
	turns := make(chan struct{}, reviewsAtOnce)
	var all sync.WaitGroup
	for n := range namespaces {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			yes, err := r.may(ctx, u, listServices(n))
			mu.Lock()
			defer mu.Unlock()
			if err != nil && first == nil {
				first = err
			}
			out[n] = yes
		})
	}
	all.Wait()
	return out, first
}
