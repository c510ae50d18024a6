// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"net/http"
	"strconv"
)

// The folder is built from ui/ by "make generate".
//
//go:embed assets
var embedded embed.FS

// asset is a file of the page.
type asset struct {
	path, contentType, etag string
	data                    []byte
}

// assets returns the files of the page.
func assets() []asset {
	list := []asset{
		{path: "/{$}", contentType: "text/html; charset=utf-8"},
		{path: "/app.js", contentType: "text/javascript; charset=utf-8"},
		{path: "/app.css", contentType: "text/css; charset=utf-8"},
		{path: "/icon.svg", contentType: "image/svg+xml"},
	}
	for i := range list {
		a := &list[i]
		file := a.path
		if file == "/{$}" {
			file = "/index.html"
		}
		data, err := embedded.ReadFile("assets" + file)
		if err != nil {
			panic(err) // it is in the program
		}
		a.data, a.etag = data, fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(data))[:16])
	}
	return list
}

// ServeHTTP serves the file. Browsers ask each time whether it has changed, because the program may have been
// updated.
func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Etag", a.etag)
	w.Header().Set("Cache-Control", "no-cache")
	if r.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.data)))
	_, _ = w.Write(a.data) // it fails only if the client is gone
}
