// SPDX-License-Identifier: Apache-2.0

// Command krew writes the manifest by which krew, the plugin manager of kubectl, installs kubectl-wangell: a Plugin of
// krew.googlecontainertools.github.com/v1alpha2 (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/). Each
// archive is named kubectl-wangell_VERSION_OS_ARCH.tar.gz, and has the program and its licences.
//
//	go run ./hack/krew --version v0.3.0 --url https://example.org/v0.3.0 dist/kubectl-wangell_*.tar.gz
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const program = "kubectl-wangell"

// plugin is krew's Plugin, as far as it is used here.
type plugin struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name string `json:"name"`
}

type spec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Caveats          string     `json:"caveats"`
	Platforms        []platform `json:"platforms"`
}

type platform struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Bin      string   `json:"bin"`
	Files    []file   `json:"files"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type file struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func main() {
	version := flag.String("version", "", "version of the program, with its v (required)")
	url := flag.String("url", "", "where the archives are published (required)")
	flag.Parse()
	if *version == "" || *url == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: krew --version VERSION --url URL ARCHIVE...")
		os.Exit(2)
	}
	if err := run(os.Stdout, *version, *url, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "krew: %v\n", err)
		os.Exit(1)
	}
}

func run(w io.Writer, version, url string, archives []string) error {
	p := plugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: metadata{"wangell"},
		Spec: spec{
			Version: version, Homepage: "https://wangell.loutres.me",
			ShortDescription: "Watch services that exist only while they are used",
			Description: "Shows the WangellServices of a cluster, why they sleep or do not, and how they woke: as tables,\n" +
				"live, or in a browser. The leading controller answers, through the API server and with your own rights.\n",
			Caveats: "The cluster needs Wangell, and you an entry in api.users of its chart. 'kubectl wangell doctor'\n" +
				"says what is missing.\n",
		},
	}
	for _, a := range archives {
		one, err := platformOf(version, url, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		p.Spec.Platforms = append(p.Spec.Platforms, one)
	}
	text, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// platformOf describes an archive.
func platformOf(version, url, archive string) (platform, error) {
	name := filepath.Base(archive)
	prefix := program + "_" + strings.TrimPrefix(version, "v") + "_"
	target, isOurs := strings.CutPrefix(strings.TrimSuffix(name, ".tar.gz"), prefix)
	goos, arch, ok := strings.Cut(target, "_")
	if !isOurs || !ok || !strings.HasSuffix(name, ".tar.gz") {
		return platform{}, fmt.Errorf("want the name %sOS_ARCH.tar.gz", prefix)
	}
	sum, files, err := read(archive)
	if err != nil {
		return platform{}, err
	}
	p := platform{
		Selector: selector{map[string]string{"os": goos, "arch": arch}},
		URI:      strings.TrimSuffix(url, "/") + "/" + name, SHA256: sum, Bin: program,
	}
	licensed, runs := false, false
	for _, f := range files {
		p.Files = append(p.Files, file{f, "."})
		licensed, runs = licensed || f == "LICENSE", runs || f == program
	}
	if !licensed || !runs {
		return platform{}, fmt.Errorf("it has %v, and must have %s and LICENSE", files, program)
	}
	return p, nil
}

// read returns the SHA-256 of an archive, and the names of its files.
func read(archive string) (sum string, files []string, err error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	hash := sha256.New()
	packed := io.TeeReader(f, hash)
	z, err := gzip.NewReader(packed)
	if err != nil {
		return "", nil, err
	}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", nil, err
		}
		if h.Typeflag == tar.TypeReg {
			files = append(files, strings.TrimPrefix(h.Name, "./"))
		}
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return "", nil, err
	}
	return hex.EncodeToString(hash.Sum(nil)), files, nil
}
