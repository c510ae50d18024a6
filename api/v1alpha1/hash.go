// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Hash returns a hash of the fields that make a pod, which specTable lists, with the data of the Secrets and ConfigMaps
// in Config, and without persistent.retain of volumes and imagePullPolicy of containers. Fields that only the gate or
// the controller uses (port, address, idleTimeout, ...) are left out.
//
// The hash is 16 hexadecimal digits, the first 8 bytes of a SHA-256. It is the same before and after Default, however a
// quantity or a signal is written, and in every version of Wangell. The spec must be valid.
func Hash(spec *WangellServiceSpec) string {
	s := spec.DeepCopy()
	s.hashPorts()
	canonicalList(s.Resources.Limits)
	canonicalList(s.Resources.Requests)
	for c := range s.Others {
		canonicalList(c.Resources.Limits)
		canonicalList(c.Resources.Requests)
		c.ImagePullPolicy = "" // as in spec
		if c.SecurityContext != nil && reflect.ValueOf(*c.SecurityContext).IsZero() {
			c.SecurityContext = nil
		}
	}
	for _, v := range s.Volumes {
		if p := v.Persistent; p != nil {
			p.Retain = nil // decides what happens once there is no pod
			if p.Size != nil {
				*p.Size = canonical(*p.Size)
			}
		}
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
			*v.EmptyDir.SizeLimit = canonical(*v.EmptyDir.SizeLimit)
		}
	}
	if s.SecurityContext != nil && reflect.ValueOf(*s.SecurityContext).IsZero() {
		s.SecurityContext = nil
	}
	if l := s.Layer; l != nil && l.SizeLimit != nil {
		*l.SizeLimit = canonical(*l.SizeLimit)
	}
	if n, err := ParseSignal(s.StopSignal); err == nil {
		s.StopSignal = fmt.Sprint(n)
	}
	sum := sha256.Sum256(s.encodePod())
	return hex.EncodeToString(sum[:8])
}

// hashPorts leaves of the ports only those on which the pods listen. A list with one port has the hash of that port.
func (s *WangellServiceSpec) hashPorts() {
	ports := s.PortList()
	s.TargetPort, s.Ports = ports[0].Target, nil
	for _, p := range ports[1:] {
		s.Ports = append(s.Ports, ServicePort{TargetPort: intstr.FromInt32(p.Target)})
	}
}

// encodePod encodes the fields that make a pod as a JSON object. Those without a value are left out, but for image and
// targetPort, so that a new field changes no hash until it is set.
func (s *WangellServiceSpec) encodePod() []byte {
	text := []byte("{")
	for _, f := range hashedFields {
		name, v := f.name, f.of(s)
		if name == "" {
			name, v = "config", reflect.ValueOf(s.Config.hash())
		}
		if name == "image" || name == "targetPort" || !isEmpty(v) {
			text = appendField(text, name, v)
		}
	}
	return append(text, '}')
}

// isEmpty reports whether a value counts as none: the zero value, an empty list, or false.
func isEmpty(v reflect.Value) bool {
	if b, ok := v.Interface().(*bool); ok {
		return !isTrue(b)
	}
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

// appendField appends a field to a JSON object that is not complete.
func appendField(text []byte, name string, v reflect.Value) []byte {
	value, err := json.Marshal(v.Interface())
	if err != nil {
		panic("v1alpha1: Hash of an invalid spec: " + err.Error())
	}
	if len(text) > 1 {
		text = append(text, ',')
	}
	return append(append(append(append(text, '"'), name...), `":`...), value...)
}

func canonicalList(l corev1.ResourceList) {
	for name, q := range l {
		l[name] = canonical(q)
	}
}

// canonical makes the text of equal quantities equal, because a Quantity keeps the way in which it was written.
func canonical(q resource.Quantity) resource.Quantity {
	// Thousandths matter only for CPUs, and those of a large number overflow.
	if q.Value() < 1<<32 {
		return *resource.NewMilliQuantity(q.MilliValue(), resource.DecimalSI)
	}
	return *resource.NewQuantity(q.Value(), resource.DecimalSI)
}
