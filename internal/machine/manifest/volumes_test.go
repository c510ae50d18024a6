// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"
)

func TestVolumeIsWrittenByOneServiceUnlessAllSayOtherwise(t *testing.T) {
	user := func(name, persistent, access string) string {
		return doc(name, "image: a/b, port: 80, volumes: [{name: data, persistent: {"+persistent+"}}], "+
			"volumeMounts: [{name: data, mountPath: /data"+access+"}]")
	}
	const readOnly = ", readOnly: true"
	for name, c := range map[string]struct {
		a, b string
		want string
	}{
		"own volumes":     {user("a", "", ""), user("b", "", ""), ""},
		"one volume":      {user("a", "name: x", ""), user("b", "name: x", ""), "already written by default/a at"},
		"one says so":     {user("a", "name: x", ""), user("b", "name: x, shared: true", ""), "already written"},
		"the other does":  {user("a", "name: x, shared: true", ""), user("b", "name: x", ""), "already written"},
		"both do":         {user("a", "name: x, shared: true", ""), user("b", "name: x, shared: true", ""), ""},
		"a reader":        {user("a", "name: x", readOnly), user("b", "name: x", ""), ""},
		"a later reader":  {user("a", "name: x", ""), user("b", "name: x", readOnly), ""},
		"by default name": {user("a", "", ""), user("b", "name: a.data", ""), "default/a.data is already written"},
		"different sizes": {user("a", "name: x, size: 1Gi", ""), user("b", "name: x", readOnly),
			"no limit here, but 1.0 GiB for"},
		"other namespaces": {user("a", "name: x", ""), user("b, namespace: other", "name: x", ""), ""},
	} {
		_, err := load(t, c.a+"\n---\n"+c.b, "-")
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
