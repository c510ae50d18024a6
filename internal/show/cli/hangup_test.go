// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// asCommand is set in the environment of the process that TestCommandUnderNohupSurvivesAHangup starts.
const asCommand = "WANGELL_TEST_COMMAND"

// TestCommandUnderNohupSurvivesAHangup starts this test program as nohup(1) starts a command. The command survives
// SIGHUP, but the programs that it starts do not ignore it.
func TestCommandUnderNohupSurvivesAHangup(t *testing.T) {
	if os.Getenv(asCommand) != "" {
		os.Exit(Run(&cobra.Command{Use: "hangup", RunE: hangUp}, []string{}))
	}
	sh := exec.Command("sh", "-c", `trap "" HUP; exec "$0" -test.run "^$1\$"`, os.Args[0], t.Name())
	sh.Env = append(os.Environ(), asCommand+"=1")
	out, err := sh.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, mask, found := strings.Cut(string(out), "SigIgn:")
	if !found {
		t.Fatalf("the started program printed %q", out)
	}
	mask, _, _ = strings.Cut(strings.TrimSpace(mask), "\n")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	if ignored&(1<<(syscall.SIGHUP-1)) != 0 {
		t.Errorf("a program that the command starts ignores SIGHUP: mask %x", ignored)
	}
}

// hangUp sends itself SIGHUP, and starts a program that prints which signals it ignores.
func hangUp(*cobra.Command, []string) error {
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		return err
	}
	cat := exec.Command("cat", "/proc/self/status")
	cat.Stdout = os.Stdout
	return cat.Run()
}
