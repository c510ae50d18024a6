// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/show/dashboard"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

// scoped is the access of one user during one request.
type scoped struct {
	all    httpapi.Services
	user   *authenticationv1.UserInfo
	rights *rights
	// namespace is the only one that the request is about; empty for all.
	namespace string
	// everywhere is set if the user may list the services of all namespaces.
	everywhere bool
	// visible has the namespaces that had services when the request arrived, and whether the user may list them.
	visible map[string]bool
}

var (
	_ httpapi.Services = (*scoped)(nil)
	_ httpapi.Holder   = (*scoped)(nil)
	_ dashboard.Scope  = (*scoped)(nil)
)

// newScoped asks for the rights of a user. It refuses a namespace that the user may not see.
func newScoped(
	ctx context.Context, all httpapi.Services, u *authenticationv1.UserInfo, rights *rights, namespace string,
) (*scoped, error) {
	s := &scoped{all: all, user: u, rights: rights, namespace: namespace}
	var err error
	if s.everywhere, err = rights.may(ctx, u, listServices("")); err != nil || s.everywhere {
		return s, err
	}
	asked := map[string]bool{}
	if namespace != "" {
		asked[namespace] = true
	} else {
		for _, st := range all.Status() {
			asked[st.Service.Namespace] = true
		}
	}
	if s.visible, err = rights.visible(ctx, u, asked); err != nil {
		return nil, err
	}
	if namespace != "" && !s.visible[namespace] {
		return nil, forbidden("user %q cannot list wangellservices.wangell.loutres.me in the namespace %q",
			u.Username, namespace)
	}
	return s, nil
}

// sees reports whether the services of a namespace are within the request and the user's rights.
func (s *scoped) sees(namespace string) bool {
	return (s.namespace == "" || s.namespace == namespace) && (s.everywhere || s.visible[namespace])
}

// Everything implements dashboard.Scope.
func (s *scoped) Everything() bool { return s.everywhere && s.namespace == "" }

// Sees implements dashboard.Scope. A namespace outside of the request needs no review.
func (s *scoped) Sees(namespace string) (yes, known bool) {
	_, known = s.visible[namespace]
	return s.sees(namespace), known || s.everywhere || s.namespace != ""
}

func (s *scoped) seesService(k v1alpha1.Key) bool {
	namespace, _ := k.Split()
	return s.sees(namespace)
}

// Status implements httpapi.Services.
func (s *scoped) Status() []status.Status {
	return slices.DeleteFunc(s.all.Status(), func(st status.Status) bool { return !s.sees(st.Service.Namespace) })
}

// Resolve implements httpapi.Services. It finds only services that the user sees.
func (s *scoped) Resolve(name string) (v1alpha1.Key, error) {
	var found []v1alpha1.Key
	for _, st := range s.Status() {
		k := v1alpha1.KeyOf(&st.Service)
		if string(k) == name {
			return k, nil
		}
		if st.Service.Name == name {
			found = append(found, k)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("service %q: there are several: %v: name one with its namespace", name, found)
	}
	if namespace, _, ok := strings.Cut(name, "/"); ok && !s.everywhere && !s.sees(namespace) {
		return "", forbidden("user %q cannot list wangellservices.wangell.loutres.me in the namespace %q",
			s.user.Username, namespace)
	}
	return "", fmt.Errorf("service %q: %w", name, runtime.ErrNotFound)
}

// Pressure implements httpapi.Services. It names nodes, so it is for those who see all services.
func (s *scoped) Pressure() []status.Pressure {
	if !s.everywhere {
		return nil
	}
	return s.all.Pressure()
}

// Wakes implements httpapi.Services.
func (s *scoped) Wakes(k v1alpha1.Key) []lifecycle.Waterfall {
	return slices.DeleteFunc(s.all.Wakes(k), func(w lifecycle.Waterfall) bool {
		return !s.seesService(v1alpha1.Key(w.Service))
	})
}

// Sleep implements httpapi.Services.
func (s *scoped) Sleep(ctx context.Context, k v1alpha1.Key) error {
	namespace, name := k.Split()
	err := s.need(ctx, sleepService(namespace, name), "put services to sleep (patch wangellservices/scale)")
	if err != nil {
		return err
	}
	return s.all.Sleep(ctx, k)
}

// Wake implements httpapi.Waker. Whoever may scale a service may wake it.
func (s *scoped) Wake(ctx context.Context, k v1alpha1.Key) error {
	all, ok := s.all.(httpapi.Waker)
	if !ok {
		return &httpapi.Error{Code: http.StatusNotImplemented, Text: "this controller wakes no services"}
	}
	namespace, name := k.Split()
	if err := s.need(ctx, sleepService(namespace, name), "wake services (patch wangellservices/scale)"); err != nil {
		return err
	}
	return all.Wake(ctx, k)
}

// Hold implements httpapi.Holder. Whoever may scale a service may keep it awake.
func (s *scoped) Hold(ctx context.Context, k v1alpha1.Key) (release func(), err error) {
	all, ok := s.all.(httpapi.Holder)
	if !ok {
		return nil, &httpapi.Error{Code: http.StatusNotImplemented, Text: "this controller keeps no services awake"}
	}
	namespace, name := k.Split()
	if err := s.need(ctx, sleepService(namespace, name), "keep services awake (patch wangellservices/scale)"); err != nil {
		return nil, err
	}
	return all.Hold(ctx, k)
}

// Logs implements httpapi.Services.
func (s *scoped) Logs(ctx context.Context, k v1alpha1.Key, w io.Writer, options runtime.LogOptions) error {
	namespace, _ := k.Split()
	if err := s.need(ctx, readLogs(namespace), "read logs (get pods/log)"); err != nil {
		return err
	}
	return s.all.Logs(ctx, k, w, options)
}

// need returns an error unless the user has a right.
func (s *scoped) need(ctx context.Context, want right, what string) error {
	switch yes, err := s.rights.may(ctx, s.user, want); {
	case err != nil:
		return err
	case !yes:
		return forbidden("user %q cannot %s in the namespace %q", s.user.Username, what, want.namespace)
	}
	return nil
}

// Subscribe implements httpapi.Services. Events of whole nodes are for those who see all services. Rights are
// reviewed for each event, also for namespaces that had no services when the request arrived.
func (s *scoped) Subscribe(ctx context.Context) <-chan status.Event {
	out := make(chan status.Event)
	all := s.all.Subscribe(ctx)
	go func() {
		defer close(out)
		for e := range all {
			if !s.mayHear(ctx, e) {
				continue
			}
			select {
			case out <- e:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func (s *scoped) mayHear(ctx context.Context, e status.Event) bool {
	namespace := ""
	if e.Service != "" {
		namespace, _ = e.Service.Split()
	}
	if s.namespace != "" && s.namespace != namespace {
		return false
	}
	yes, err := s.rights.may(ctx, s.user, listServices(""))
	if err == nil && !yes && namespace != "" {
		yes, err = s.rights.may(ctx, s.user, listServices(namespace))
	}
	return err == nil && yes
}

// Ready implements httpapi.Services.
func (s *scoped) Ready() error { return s.all.Ready() }
