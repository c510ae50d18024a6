// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// A container runtime may write the last lines of a log just after it has reported the end of the container, so a log
// is read twice.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = 300 * time.Millisecond
)

// maxRawLog is how much of the end of a log file is read, in bytes: its lines have a prefix of about 45 bytes.
const maxRawLog = 4 * runtime.MaxPodLog

// reportLog reports the end of the log of a container that has ended. The file is opened at once, because kubelet
// removes it with the pod.
func (d *daemon) reportLog(r runtime.PodReport) {
	if d.cfg.PodLogs == "" || r.LogPath == "" {
		return
	}
	f, err := openLog(d.cfg.PodLogs, r.LogPath)
	if err != nil {
		d.log.Debug("the log of a container cannot be read", "pod", r.Name, "container", r.Container, "error", err)
		return
	}
	d.tasks.Go(func() {
		defer f.Close()
		sent := ""
		for _, pause := range []time.Duration{firstLook, lastLook} {
			select {
			case <-time.After(pause):
			case <-d.ctx.Done(): // what is there is all that is read
			}
			end, err := logEnd(f)
			if err != nil {
				d.log.Debug("the log of a container cannot be read", "pod", r.Name, "container", r.Container, "error", err)
				return
			}
			if last := pause == lastLook; end != sent || last && sent == "" {
				d.send(&wire.PodLog{UID: r.Pod.ID, Container: r.Container, Text: end})
				sent = end
			}
		}
	})
}

// openLog opens a log below a folder. Links that lead out of the folder are not followed.
func openLog(folder, path string) (*os.File, error) {
	name, err := filepath.Rel(folder, path)
	if err != nil || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("log %s is not below %s", path, folder)
	}
	return os.OpenInRoot(folder, name)
}

// logEnd returns the end of a log in the format of CRI, at most runtime.MaxPodLog bytes of whole lines.
func logEnd(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", f.Name())
	}
	from := max(info.Size()-maxRawLog, 0)
	raw := make([]byte, info.Size()-from)
	n, err := f.ReadAt(raw, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	raw = raw[:n]
	if from > 0 { // the first line is not whole
		_, raw, _ = bytes.Cut(raw, []byte("\n"))
	}
	return text.LastLines(parseLog(raw), runtime.MaxPodLog), nil
}

// parseLog returns what a container wrote from the lines of its log, each of which is a time, the stream, tags and the
// text, divided by spaces. The first tag is P if the line goes on in the next one of its stream. Other lines are left
// out: a runtime may have written half of the last one.
func parseLog(raw []byte) string {
	var out strings.Builder
	for line := range bytes.Lines(raw) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		fields := bytes.SplitN(line, []byte(" "), 4)
		if len(fields) < 4 {
			continue
		}
		written := fields[3]
		if tag, _, _ := bytes.Cut(fields[2], []byte(":")); string(tag) == "P" {
			written = written[:len(written)-1]
		}
		out.Write(written)
	}
	return strings.ToValidUTF8(out.String(), "\uFFFD")
}
