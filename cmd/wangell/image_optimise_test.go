// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/lazy/trace"
	"wangell.loutres.me/internal/status"
)

func TestImagesOfAServiceAreFound(t *testing.T) {
	var all []status.Status
	for _, s := range [][3]string{{"other", "web", "a:1"}, {"default", "web", "b:1"}, {"other", "db", "c:1"}} {
		all = append(all, status.Status{Service: v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: s[0], Name: s[1]}, Spec: v1alpha1.WangellServiceSpec{Image: s[2]},
		}})
	}
	all[2].Service.Spec.InitContainers = []v1alpha1.Container{{Image: "init:1"}, {Image: "c:1"}}
	for name, want := range map[string]string{
		"web": "b:1", "other/web": "a:1", "db": "c:1 init:1", "none": "", "default/db": "",
	} {
		if got, ok := imagesOf(all, name); strings.Join(got, " ") != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, ok, want)
		}
	}
}

func TestTheGainIsThatOfWhatIsReadFirst(t *testing.T) {
	root := t.TempDir()
	before := trace.Layer{Files: []string{"a", "b", "c"}, Blocks: []int{9, 8, 3, 4, 0}}
	if err := before.Write(root, digest.FromString("read")); err != nil {
		t.Fatal(err)
	}
	g := gainOf(convert.Result{Images: []convert.Image{
		{Before: []convert.Layer{{Digest: digest.FromString("other"), Packed: 5}}, After: []convert.Layer{{Packed: 5}}},
		{
			Before: []convert.Layer{{Digest: digest.FromString("read"), Packed: 10 << 20}},
			After:  []convert.Layer{{Packed: 9e6, First: 1e6}, {Packed: 1e6}},
		},
	}}, root)
	if want := (gain{3, 5 * trace.BlockSize, 3, 1e6, 1, 10e6}); g != want {
		t.Errorf("gain %+v, want %+v", g, want)
	}
	if text := g.String(); !strings.Contains(text, "3 files") || !strings.Contains(text, "1.3 MB in 3 pieces before") {
		t.Errorf("in words: %s", text)
	}
}
