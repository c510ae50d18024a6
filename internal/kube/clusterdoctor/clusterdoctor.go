// SPDX-License-Identifier: Apache-2.0

// Package clusterdoctor checks whether Wangell works on a cluster, as far as the user's rights allow.
package clusterdoctor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/kube/clusterapi"
	"wangell.loutres.me/internal/show/httpapi"
)

// State is the outcome of a check.
type State string

// Outcomes of a check.
const (
	OK      State = "ok"
	Warn    State = "warn"    // works, with a restriction that the check names
	Failed  State = "failed"  // does not work
	Skipped State = "skipped" // the user may not look
)

var marks = map[State]string{OK: "✓", Warn: "!", Failed: "✗", Skipped: "?"}

// Check is the result of one check.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Do is what to do about it; empty if there is nothing to do.
	Do string `json:"do,omitempty"`
}

// timeout bounds all checks.
const timeout = 30 * time.Second

const (
	// staleLease is the age of a Lease's last renewal from which no controller leads: leases last 2 s by default.
	staleLease = 30 * time.Second
	// leaseLook is the pause between two looks at a Lease that seems to be stale, or of the future. It is renewed several
	// times a second by default.
	leaseLook = 5 * time.Second
)

// doctor looks at a cluster.
type doctor struct {
	api       kubernetes.Interface
	of        clusterapi.Controller
	client    *httpapi.Client
	namespace string
	now       func() time.Time
	after     func(time.Duration) <-chan time.Time
}

// Run returns the result of all checks, with the rights of the user of c.
func Run(
	ctx context.Context, c *rest.Config, of clusterapi.Controller, client *httpapi.Client, namespace string,
) ([]Check, error) {
	api, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d := &doctor{api: api, of: of, client: client, namespace: namespace, now: time.Now,
		after: time.After}
	checks := []Check{
		d.server(), d.definition(), d.leader(ctx), d.replicas(ctx), d.daemons(ctx), d.answers(ctx), d.pressure(ctx),
		d.policies(ctx),
	}
	return slices.Concat(checks, d.envoys(ctx), d.lazy(ctx), d.rights(ctx)), nil
}

// Bad returns the names of the checks that have failed.
func Bad(checks []Check) (names []string) {
	for _, c := range checks {
		if c.State == Failed {
			names = append(names, c.Name)
		}
	}
	return names
}

// WriteTable prints checks, and what to do on a line below each.
func WriteTable(w io.Writer, checks []Check) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(t, "%s %s\t%s\n", marks[c.State], c.Name, c.Found)
		if c.Do != "" {
			fmt.Fprintf(t, "    → %s\n", c.Do)
		}
	}
	return t.Flush()
}

// outcome is the result of reading an object: skipped if the user may not, failed for another error.
func outcome(name string, err error, do string) Check {
	if apierrors.IsForbidden(err) {
		return Check{Name: name, State: Skipped, Found: err.Error()}
	}
	return Check{Name: name, State: Failed, Found: err.Error(), Do: do}
}

func (d *doctor) server() Check {
	const name = "API server"
	v, err := d.api.Discovery().ServerVersion()
	if err != nil {
		return outcome(name, err, "check --kubeconfig and --context")
	}
	return Check{Name: name, State: OK, Found: v.GitVersion}
}

func (d *doctor) definition() Check {
	const name = "definition"
	version := v1alpha1.GroupVersion.String()
	list, err := d.api.Discovery().ServerResourcesForGroupVersion(version)
	if err != nil {
		return outcome(name, err, "install the chart, which has the definition of WangellServices")
	}
	for _, r := range list.APIResources {
		if r.Name == "wangellservices" {
			return Check{Name: name, State: OK, Found: "wangellservices of " + version}
		}
	}
	return Check{Name: name, State: Failed, Found: version + " has no wangellservices", Do: "install the chart"}
}

func (d *doctor) leader(ctx context.Context) Check {
	const name = "leader"
	leases := d.api.CoordinationV1().Leases(d.of.Namespace)
	lease, err := leases.Get(ctx, d.of.Name, metav1.GetOptions{})
	if err != nil {
		return outcome(name, err, "install the chart, or name its release with --controller NAMESPACE/NAME")
	}
	do := fmt.Sprintf("look at its pods: kubectl -n %s get pods", d.of.Namespace)
	holder, renewed := lease.Spec.HolderIdentity, lease.Spec.RenewTime
	if holder == nil || *holder == "" || renewed == nil {
		return Check{Name: name, State: Failed, Found: "no controller leads", Do: do}
	}
	age := d.now().Sub(renewed.Time)
	if age >= 0 && age <= staleLease {
		return Check{Name: name, State: OK, Found: *holder}
	}
	// The clock of this machine may be wrong: one that leads renews its Lease.
	select {
	case <-ctx.Done():
		return outcome(name, ctx.Err(), do)
	case <-d.after(leaseLook):
	}
	again, err := leases.Get(ctx, d.of.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return outcome(name, err, do)
	case again.Spec.RenewTime == nil || again.Spec.RenewTime.Equal(renewed):
		return Check{
			Name: name, State: Failed, Do: do,
			Found: fmt.Sprintf("%s led, and has not renewed its Lease since %s", *holder,
				renewed.Local().Format(time.RFC3339)),
		}
	}
	return Check{
		Name: name, State: Warn, Do: "set the clock",
		Found: fmt.Sprintf("%s; the clock of this machine differs from its clock by %s", *holder,
			age.Abs().Round(time.Second)),
	}
}

func (d *doctor) replicas(ctx context.Context) Check {
	const name = "controllers"
	o, err := d.api.AppsV1().Deployments(d.of.Namespace).Get(ctx, d.of.Name+"-controller", metav1.GetOptions{})
	if err != nil {
		return outcome(name, err, "install the chart")
	}
	wanted := int32(1)
	if o.Spec.Replicas != nil {
		wanted = *o.Spec.Replicas
	}
	found := fmt.Sprintf("%d of %d are ready", o.Status.ReadyReplicas, wanted)
	do := fmt.Sprintf("kubectl -n %s describe pods", d.of.Namespace)
	switch {
	case o.Status.ReadyReplicas == 0:
		return Check{Name: name, State: Failed, Found: found, Do: do}
	case o.Status.ReadyReplicas < wanted:
		return Check{Name: name, State: Warn, Found: found, Do: do}
	}
	return Check{Name: name, State: OK, Found: found}
}

func (d *doctor) daemons(ctx context.Context) Check {
	const name = "daemons"
	o, err := d.api.AppsV1().DaemonSets(d.of.Namespace).Get(ctx, d.of.Name+"-daemon", metav1.GetOptions{})
	if err != nil {
		return outcome(name, err, "install the chart")
	}
	return d.onNodes(ctx, name, "", o)
}

// onNodes says how many pods of a DaemonSet are ready, and why one is not. what are these, if the name of the check
// does not say it.
func (d *doctor) onNodes(ctx context.Context, name, what string, o *appsv1.DaemonSet) Check {
	c := Check{Name: name, State: OK}
	c.Found = fmt.Sprintf("%d of %d %sare ready", o.Status.NumberReady, o.Status.DesiredNumberScheduled, what)
	if o.Status.NumberReady < o.Status.DesiredNumberScheduled || o.Status.NumberReady == 0 {
		c.State = Failed
		if why := d.whyNotReady(ctx, o); why != "" {
			c.Found += "; " + why
		}
		c.Do = fmt.Sprintf("kubectl -n %s get pods -o wide; 'wangell doctor' on the node of one that is not", d.of.Namespace)
	}
	return c
}

// optional checks a DaemonSet that the chart may have; it returns nothing if it has none.
func (d *doctor) optional(ctx context.Context, name, object, what string) (c []Check, o *appsv1.DaemonSet) {
	o, err := d.api.AppsV1().DaemonSets(d.of.Namespace).Get(ctx, d.of.Name+"-"+object, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return []Check{outcome(name, err, "install the chart")}, nil
	}
	return []Check{d.onNodes(ctx, name, what, o)}, o
}

// envoys checks the Envoys that balance requests.
func (d *doctor) envoys(ctx context.Context) []Check {
	c, _ := d.optional(ctx, "requests", "envoy", "Envoys ")
	return c
}

// lazy checks the snapshotters for lazy pulls.
func (d *doctor) lazy(ctx context.Context) []Check {
	c, o := d.optional(ctx, "lazy pulling", "lazy", "snapshotters ")
	if o != nil && o.Status.DesiredNumberScheduled == 0 {
		c[0].State, c[0].Found = Warn, "no node has the label "+v1alpha1.LabelLazy+"=true"
		c[0].Do = "set up nodes as docs/images/lazy-kubernetes.md says, and label them"
	}
	return c
}

// answers asks the leading controller.
func (d *doctor) answers(ctx context.Context) Check {
	const name = "API for people"
	versions, err := d.client.Versions(ctx)
	if err != nil {
		return Check{Name: name, State: Failed, Found: err.Error()}
	}
	if err := d.client.Ready(ctx); err != nil {
		return Check{Name: name, State: Failed, Found: err.Error(), Do: "wait a moment; then look at the controller's log"}
	}
	return Check{Name: name, State: OK, Found: "controller " + versions["controller"]}
}

func (d *doctor) pressure(ctx context.Context) Check {
	const name = "pressure on the gates"
	p, err := d.client.Pressure(ctx)
	switch {
	case err != nil:
		return Check{Name: name, State: Skipped, Found: err.Error()}
	case len(p) > 0:
		return Check{
			Name: name, State: Warn, Found: fmt.Sprintf("%s: %s", p[0].Reason, p[0].Message),
			Do: "see \"Pressure on the gate\" in docs/operations/sizes.md",
		}
	}
	return Check{Name: name, State: OK, Found: "none that you may see"}
}

// rights lists what the user may do in the namespace.
func (d *doctor) rights(ctx context.Context) []Check {
	group := v1alpha1.GroupVersion.Group
	var out []Check
	for _, r := range []struct {
		name string
		at   authorizationv1.ResourceAttributes
	}{
		{"see services", authorizationv1.ResourceAttributes{Verb: "list", Group: group, Resource: "wangellservices"}},
		{"put services to sleep", authorizationv1.ResourceAttributes{
			Verb: "patch", Group: group, Resource: "wangellservices", Subresource: "scale"}},
		{"read logs", authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Subresource: "log"}},
	} {
		r.at.Namespace = d.namespace
		name := "right to " + r.name
		review, err := d.api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r.at},
			}, metav1.CreateOptions{})
		switch {
		case err != nil:
			out = append(out, outcome(name, err, ""))
		case review.Status.Allowed:
			out = append(out, Check{Name: name, State: OK, Found: "in the namespace " + d.namespace})
		default:
			out = append(out, Check{
				Name: name, State: Warn, Found: "not in the namespace " + d.namespace,
				Do: "ask an administrator for the ClusterRole view or edit there",
			})
		}
	}
	return out
}
