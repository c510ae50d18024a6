// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Extra fields of a user with the pod that a token is bound to, and its node.
const (
	extraPod    = "authentication.kubernetes.io/pod-name"
	extraPodUID = "authentication.kubernetes.io/pod-uid"
	extraNode   = "authentication.kubernetes.io/node-name"
)

// Reasons to refuse a token. Other errors of Node mean that the API server did not answer.
var (
	errToken   = errors.New("the API server does not accept the token")
	errAccount = errors.New("the token is not of the daemon's service account")
	errUnbound = errors.New("the token is not bound to a pod on a node")
)

// Reviewer asks the API server for the owner of a token.
type Reviewer struct {
	API kubernetes.Interface
	// Namespace and Account name the service account of the daemons.
	Namespace, Account string
}

// Node returns the node of the daemon's pod to which a token is bound.
func (r *Reviewer) Node(ctx context.Context, token string) (string, error) {
	review, err := r.API.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("review of a token: %w", err)
	}
	pod, uid, node, err := judge(&review.Status, "system:serviceaccount:"+r.Namespace+":"+r.Account)
	if err != nil || node != "" {
		return node, err
	}
	return r.NodeOfPod(ctx, pod, uid)
}

// NodeOfPod returns the node of a daemon's pod. It is for API servers before 1.30, which do not report it with the
// token.
func (r *Reviewer) NodeOfPod(ctx context.Context, pod, uid string) (string, error) {
	o, err := r.API.CoreV1().Pods(r.Namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("pod %s/%s of a token: %w", r.Namespace, pod, err)
	}
	if string(o.UID) != uid || o.Spec.NodeName == "" {
		return "", fmt.Errorf("%w: pod %s/%s", errUnbound, r.Namespace, pod)
	}
	return o.Spec.NodeName, nil
}

// judge evaluates the answer to a review: the pod of the account to which the token is bound and, if the API server
// reports it, the pod's node.
func judge(s *authenticationv1.TokenReviewStatus, account string) (pod, uid, node string, err error) {
	one := func(field string) string {
		if v := s.User.Extra[field]; len(v) == 1 {
			return v[0]
		}
		return ""
	}
	pod, uid, node = one(extraPod), one(extraPodUID), one(extraNode)
	switch {
	case !s.Authenticated:
		return "", "", "", errToken
	case !slices.Contains(s.Audiences, Audience):
		return "", "", "", fmt.Errorf("%w: it is not for the audience %s", errToken, Audience)
	case s.User.Username != account:
		return "", "", "", fmt.Errorf("%w %s, but of %q", errAccount, account, s.User.Username)
	case pod == "" || uid == "":
		return "", "", "", errUnbound
	}
	return pod, uid, node, nil
}
