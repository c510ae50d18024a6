// SPDX-License-Identifier: Apache-2.0

// Package postgres tests PostgreSQL servers of the recipe debimage.Postgres on one machine (test/e2e) and on
// Kubernetes (test/kube): clients that record which of their commits were acknowledged, servers that notice a second
// one on the same data, and a check of the data.
package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// UID is the user that the server runs as, which must own the folder of its data.
const UID = 999

// Probe is the part of a spec by which clients wait until the server accepts connections.
const Probe = "readyWhen: Probe\nreadinessProbe:\n  timeoutSeconds: 5\n  exec: {command: [/bin/sh, -c, " +
	"'exec /usr/lib/postgresql/*/bin/pg_isready --quiet --host=127.0.0.1']}\n"

// StartingUp is the message of a server that listens and does not accept connections yet.
const StartingUp = "starting up"

// BuildOnly builds the program of Only into a folder, which every user may read.
func BuildOnly(folder string) error {
	program := filepath.Join(folder, "only")
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	return errors.Join(os.MkdirAll(folder, 0o755), e2e.GoBuild("wangell.loutres.me/test/e2e/only", program),
		os.Chmod(folder, 0o755))
}

// Only is the part of a spec by which the server does not start beside another one on the same data: see
// test/e2e/only. The lock file that PostgreSQL has itself does not prevent that in containers, in each of which the
// server is PID 1. It needs the folder of BuildOnly mounted at /only, and that of the data at /var/lib/postgresql.
const Only = "command: [/only/only, /var/lib/postgresql, /bin/sh, /start]\n"

// Conflict returns the messages of servers that met another one on the data in a folder; empty if none did.
func Conflict(folder string) string {
	text, _ := os.ReadFile(filepath.Join(folder, "conflict"))
	return string(text)
}

// Check runs pg_amcheck on all data of a server, with indexes against tables, and returns the errors found.
func Check(ctx context.Context, from *netlab.Namespace, address string) error {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_amcheck") // not in PATH
	if err != nil || len(found) == 0 {
		return errors.Join(errors.New("no pg_amcheck: hack/install-deps.sh test installs it with psql"), err)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e2e.Patience)
	defer cancel()
	cmd := from.Command(ctx, found[len(found)-1], "-h", host, "-p", port, "-U", "postgres", "--all", "--install-missing",
		"--heapallindexed")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("pg_amcheck: %w: %s%s", err, stdout.Bytes(), stderr.Bytes())
	}
	if stdout.Len() > 0 {
		return fmt.Errorf("pg_amcheck: %s", stdout.Bytes())
	}
	return nil
}
