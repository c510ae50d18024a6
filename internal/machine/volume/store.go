// SPDX-License-Identifier: Apache-2.0

// Package volume keeps the persistent volumes of one machine in a folder. A volume is a folder or, with a size, an
// ext4 file system in a file, which is mounted while a pod holds it. Several processes may use the same volumes: each
// operation locks its volume.
//
// A volume is the folder NAMESPACE/NAME with
//
//	volume.json    the Record
//	fs/data        what pods see; a folder below fs, so that they do not see lost+found
//	disk           the file system, mounted at fs; only with a size
package volume

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
)

// Store is a folder of volumes.
type Store struct {
	dir  string
	pods string
}

// NewStore returns the store in the state folder of an instance. pods has a folder for each pod, which records the
// volumes that the pod holds.
func NewStore(stateDir, pods string) *Store {
	return &Store{dir: filepath.Join(stateDir, "volumes"), pods: pods}
}

// ID names a volume.
type ID struct{ Namespace, Name string }

// IDOf returns the name of a persistent volume of a service.
func IDOf(s *v1alpha1.WangellService, v *v1alpha1.Volume) ID {
	return ID{cmp.Or(s.Namespace, v1alpha1.DefaultNamespace), v.VolumeName(s.Name)}
}

// check returns an error for a name that cannot be a folder of a store.
func (i ID) check() error {
	if len(validation.IsDNS1123Label(i.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(i.Name)) > 0 {
		return fmt.Errorf("%q is not the name of a volume: write NAME or NAMESPACE/NAME, of lower-case letters, digits, "+
			"dots and hyphens", i)
	}
	return nil
}

// String returns NAMESPACE/NAME.
func (i ID) String() string { return i.Namespace + "/" + i.Name }

// Record is what is known of a volume.
type Record struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Serial distinguishes volumes that have the same name one after the other.
	Serial string `json:"serial"`
	// SizeBytes is the size of the file system; 0 for a folder without a limit.
	SizeBytes int64     `json:"sizeBytes,omitempty"`
	Created   time.Time `json:"created"`
	// Service is the service whose pod was the last to hold the volume, as NAMESPACE/NAME; empty if none ever did.
	Service string `json:"service,omitempty"`
}

// ID returns the volume's name.
func (r Record) ID() ID { return ID{r.Namespace, r.Name} }

// OfImage reports whether the volume is there because an image of a service declares it; see
// v1alpha1.ImageVolumeName.
func (r Record) OfImage(service string) bool { return strings.HasPrefix(r.Name, service+".image.") }

// Info is a volume and the pods that hold it.
type Info struct {
	Record
	// Path is the folder that pods see. It is empty while a volume with a size is not mounted.
	Path string `json:"path"`
	// Pods hold the volume.
	Pods []string `json:"pods,omitempty"`
}

// ErrNotFound is returned if there is no such volume.
var ErrNotFound = errors.New("no such volume")

// Hidden folders of a store, for volumes that are being made or removed. No namespace can have such a name.
const (
	newDir     = ".new"
	removedDir = ".removed"
)

// Path returns the folder of a volume that pods see. It is empty before Hold.
func (s *Store) Path(id ID) string { return s.at(id).data() }

// List returns all volumes, sorted by name.
func (s *Store) List() ([]Info, error) {
	records, err := filepath.Glob(filepath.Join(s.dir, "[^.]*", "*", recordFile))
	if err != nil {
		return nil, err
	}
	list := []Info{}
	for _, file := range records {
		v := place(filepath.Dir(file))
		r, err := v.record()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		pods, err := s.holders(r.Serial)
		if err != nil {
			return nil, err
		}
		list = append(list, Info{Record: r, Path: v.data(), Pods: pods})
	}
	slices.SortFunc(list, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// Find returns the volume that a user names, as NAMESPACE/NAME or, if that is unambiguous, as NAME.
func (s *Store) Find(name string) (Info, error) {
	list, err := s.List()
	if err != nil {
		return Info{}, err
	}
	var found []Info
	for _, v := range list {
		if v.ID().String() == name || v.Name == name {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return Info{}, fmt.Errorf("volume %s: %w ('wangell volume ls' lists them)", name, ErrNotFound)
	case 1:
		return found[0], nil
	}
	return Info{}, fmt.Errorf("volume %s: write NAMESPACE/NAME, as there are %s and %s", name, found[0].ID(),
		found[1].ID())
}

// place is the folder of a volume.
type place string

const recordFile = "volume.json"

func (s *Store) at(id ID) place { return place(filepath.Join(s.dir, id.Namespace, id.Name)) }

func (p place) fs() string   { return filepath.Join(string(p), "fs") }
func (p place) data() string { return filepath.Join(string(p), "fs", dataDir) }
func (p place) disk() string { return filepath.Join(string(p), "disk") }

const dataDir = "data"

func (p place) record() (r Record, err error) {
	file := filepath.Join(string(p), recordFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

func (p place) write(r Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(string(p), recordFile), append(text, '\n'))
}

// ParseID parses NAMESPACE/NAME; a NAME alone is in the namespace default.
func ParseID(text string) ID {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return ID{namespace, name}
	}
	return ID{v1alpha1.DefaultNamespace, text}
}

// holders returns the pods that hold the volume with the given serial.
func (s *Store) holders(serial string) (pods []string, err error) {
	notes, err := filepath.Glob(filepath.Join(s.held("*"), serial))
	for _, n := range notes {
		pods = append(pods, filepath.Base(filepath.Dir(filepath.Dir(n))))
	}
	return pods, err
}

// held is the folder that records the volumes of a pod: files named by serial, each with the ID of a volume.
func (s *Store) held(pod string) string { return filepath.Join(s.pods, pod, "persistent") }
