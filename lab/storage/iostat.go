// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// iostatInterval is the length of the intervals of iostat, in seconds, as in the report.
const iostatInterval = 3

// iostat is a running iostat(1).
type iostat struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// startIostat starts `iostat -x 3`. It reports from its first full interval on, and only devices with traffic.
func startIostat() (*iostat, error) {
	i := &iostat{cmd: exec.Command("iostat", "-x", "-y", "-d", "-z", strconv.Itoa(iostatInterval))}
	i.cmd.Env = append(os.Environ(), "LC_ALL=C")
	i.cmd.Stdout = &i.out
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := i.cmd.Start(); err != nil {
		return nil, fmt.Errorf("iostat: %w", err)
	}
	return i, nil
}

// stop ends iostat and returns what it printed.
func (i *iostat) stop() []byte {
	_ = i.cmd.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(10*time.Second, func() { _ = i.cmd.Process.Kill() })
	defer kill.Stop()
	_ = i.cmd.Wait() // by the signal
	return i.out.Bytes()
}

// parsed is what iostat printed: all rows, and the line with the most writing with its header.
type parsed struct {
	rows         []Row
	header, line string
}

// parseIostat reads iostat's output. Each report begins with the names of the columns. An interval without traffic has
// no rows, but a header.
func parseIostat(from io.Reader) (p parsed, err error) {
	lines := bufio.NewScanner(from)
	var columns []string
	reports, most := 0, 0.0
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0 || fields[0] == "Linux":
			continue
		case fields[0] == "Device":
			columns = fields
			reports++
			continue
		case len(fields) != len(columns):
			return p, fmt.Errorf("iostat: line %q has %d fields, want %d", lines.Text(), len(fields), len(columns))
		}
		values := map[string]float64{}
		for i, name := range columns[1:] {
			if values[name], err = strconv.ParseFloat(fields[i+1], 64); err != nil {
				return p, fmt.Errorf("iostat: line %q: %w", lines.Text(), err)
			}
		}
		row := Row{At: float64(reports * iostatInterval), Device: fields[0], Writes: values["w/s"], WriteKB: values["wkB/s"],
			Await: values["w_await"], Flushes: values["f/s"], Util: values["%util"], ReadKB: values["rkB/s"],
			QueueLen: values["aqu-sz"]}
		p.rows = append(p.rows, row)
		if row.WriteKB > most || p.line == "" {
			most, p.header, p.line = row.WriteKB, strings.Join(columns, " "), strings.Join(fields, " ")
		}
	}
	return p, lines.Err()
}
