// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// claim creates a PersistentVolumeClaim that asks for an access mode.
func (w *world) claim(name string, mode corev1.PersistentVolumeAccessMode) {
	w.t.Helper()
	w.create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	})
}

// unclaim deletes a PersistentVolumeClaim, which a controller that is not there protects.
func (w *world) unclaim(name string) {
	w.t.Helper()
	var c corev1.PersistentVolumeClaim
	w.get(name, &c)
	c.Finalizers = nil
	w.update(&c)
	if err := w.client.Delete(context.Background(), &c); err != nil {
		w.t.Fatal(err)
	}
}

// deployed returns the strategy of a Deployment and its generation, which each change of its spec increments.
func (w *world) deployed(name string) (strategy appsv1.DeploymentStrategyType, generation int64) {
	w.t.Helper()
	var d appsv1.Deployment
	w.get(name, &d)
	return d.Spec.Strategy.Type, d.Generation
}

// A claim decides by its access modes whether the pods of a service may run at the same time, also one that is made
// again with others, or after the service. A new leader has them before it decides anything.
func TestAccessModesOfAClaimDecideTheStrategyOfADeployment(t *testing.T) {
	const recreate, rolling = appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType
	w := newWorld(t, nil)
	stop := w.run()
	w.claim("other", corev1.ReadWriteMany)
	writes := func(claim string) func(*v1alpha1.WangellServiceSpec) {
		return func(s *v1alpha1.WangellServiceSpec) {
			s.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
			s.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}
	}
	is := func(status metav1.ConditionStatus, reason, message string, strategy appsv1.DeploymentStrategyType) {
		t.Helper()
		got := w.condition("app", v1alpha1.ConditionSingleWriter, status, reason)
		if !strings.Contains(got, message) {
			t.Errorf("the condition says %q, want %q in it", got, message)
		}
		if got, _ := w.deployed("app"); got != strategy {
			t.Errorf("the strategy of the Deployment is %s, want %s", got, strategy)
		}
	}
	w.apply("app", writes("data"))
	is(metav1.ConditionTrue, v1alpha1.ReasonOneWriter, "Claim data are not known", recreate)
	w.claim("data", corev1.ReadWriteMany)
	is(metav1.ConditionFalse, v1alpha1.ReasonManyWriters, "Claim data asks for ReadWriteMany", rolling)
	w.unclaim("data")
	is(metav1.ConditionTrue, v1alpha1.ReasonOneWriter, "not known", recreate)
	w.claim("data", corev1.ReadWriteOnce)
	w.change("app", writes("other"))
	is(metav1.ConditionFalse, v1alpha1.ReasonManyWriters, "Claim other asks for ReadWriteMany", rolling)
	w.change("app", writes("data"))
	is(metav1.ConditionTrue, v1alpha1.ReasonOneWriter, "Claim data asks for ReadWriteOnce", recreate)
	w.change("app", func(s *v1alpha1.WangellServiceSpec) { s.UpdateStrategy = v1alpha1.UpdateRolling })
	is(metav1.ConditionFalse, v1alpha1.ReasonChosen, "as spec.updateStrategy says", rolling)
	w.change("app", func(s *v1alpha1.WangellServiceSpec) {
		writes("other")(s)
		s.UpdateStrategy = ""
	})
	is(metav1.ConditionFalse, v1alpha1.ReasonManyWriters, "Claim other", rolling)

	_, before := w.deployed("app")
	stop()
	w.run()
	w.vip("app")
	w.apply("later", writes("data")) // reconciled after the services that the leader found
	w.condition("later", v1alpha1.ConditionSingleWriter, metav1.ConditionTrue, v1alpha1.ReasonOneWriter)
	is(metav1.ConditionFalse, v1alpha1.ReasonManyWriters, "Claim other", rolling)
	if _, after := w.deployed("app"); after != before {
		t.Errorf("the new leader changed the Deployment: generation %d, before %d", after, before)
	}
}
