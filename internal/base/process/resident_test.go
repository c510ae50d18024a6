// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// smaps has, of a program /bin/wangell: text, a relocated table, a table, data; and areas of other files.
const smaps = `00400000-02400000 r-xp 00000000 08:01 77 /bin/wangell
Size:              32768 kB
Rss:               21380 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
02400000-02500000 r--p 02000000 08:01 77 /bin/wangell
Anonymous:             4 kB
VmFlags: rd mr mw me ac
02500000-04500000 r--p 02100000 08:01 77 /bin/wangell
Anonymous:             0 kB
04500000-04600000 rw-p 04100000 08:01 77 /bin/wangell
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 08:01 78 /lib/libc.so.6
Anonymous:             0 kB
7f0000001000-7f0000002000 rw-s 00000000 00:0e 1 anon_inode:bpf-map
Anonymous:             0 kB
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
Anonymous:             0 kB
`

func TestOnlyUnmodifiedAreasOfTheProgramAreTrimmed(t *testing.T) {
	got, err := unmodified(strings.NewReader(smaps), "/bin/wangell")
	if want := []area{{0x400000, 0x2400000}, {0x2500000, 0x4500000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%x, %v, want %x", got, err, want)
	}
	if got, err := unmodified(strings.NewReader("zzz r-xp 0 0 0 /bin/wangell\n"), "/bin/wangell"); err == nil {
		t.Errorf("%x of a line without addresses, want an error", got)
	}
}

func TestTrimResidentUnmapsThePagesOfTheProgram(t *testing.T) {
	before := residentFile(t)
	if err := TrimResident(); err != nil {
		t.Fatal(err)
	}
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of files resident, %d before", after, before)
	}
}

// residentFile returns the resident pages of files, in kB: RssFile of proc_pid_status(5).
func residentFile(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		t.Fatal(err)
	}
	return kB
}
