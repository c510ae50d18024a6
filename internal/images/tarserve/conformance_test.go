// SPDX-License-Identifier: Apache-2.0

package tarserve

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// The conformance tests of the OCI distribution-spec pass for what is served: the category of pulls.
func TestPullsConformToTheDistributionSpec(t *testing.T) {
	s := serveTestImage(t)
	var blobs []string
	for d := range s.archive.blobs {
		blobs = append(blobs, d.String())
	}
	script, err := filepath.Abs("../../../hack/tool.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, "conformance")
	cmd.Dir = t.TempDir() // for its reports
	cmd.Env = append(os.Environ(), "OCI_REGISTRY="+s.listen.Addr().String(), "OCI_TLS=disabled", "OCI_REPO1="+repository,
		"OCI_API_PUSH=false", "OCI_API_BLOBS_DELETE=false", "OCI_API_MANIFESTS_DELETE=false", "OCI_API_TAGS_DELETE=false",
		"OCI_API_TAGS_LIST=false", "OCI_API_REFERRER=false", "OCI_RO_DATA_TAGS="+tag,
		"OCI_RO_DATA_MANIFESTS="+digest.FromBytes(s.archive.top).String(), "OCI_RO_DATA_BLOBS="+strings.Join(blobs, " "))
	// The program fails when it writes the report, since a category that cannot be tested without pushes has no status.
	out, err := cmd.CombinedOutput()
	text := string(out)
	for _, want := range []string{
		`(?m)^  Blob get\.+: +Pass$`, `(?m)^  Blob head\.+: +Pass$`, `(?m)^  Manifest get by digest\.+: +Pass$`,
		`(?m)^  Manifest get by tag\.+: +Pass$`, `(?m)^  Manifest head by digest\.+: +Pass$`,
		`(?m)^  Manifest head by tag\.+: +Pass$`, `(?m)^  Ping\.+: +Pass$`, `(?m)^  FAIL\.+: +0$`, `(?m)^  Error\.+: +0$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%q is not in what the conformance tests say (%v):\n%s", want, err, text)
		}
	}
}
