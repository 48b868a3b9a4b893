package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// store is an image layout under construction: files by name.
type store map[string][]byte

// blob adds a blob and returns its descriptor.
func (s store) blob(mediaType string, content []byte) Descriptor {
	s["blobs/sha256/"+sum(string(content))] = content
	return Descriptor{MediaType: mediaType, Digest: "sha256:" + sum(string(content)), Size: int64(len(content))}
}

func (s store) document(t testing.TB, mediaType string, v any) Descriptor {
	t.Helper()
	document, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return s.blob(mediaType, document)
}

const layerType = "application/vnd.oci.image.layer.v1.tar"

// testConfig is what all images of these tests say about running them.
var testConfig = Config{Env: []string{"PATH=/bin", "A=b"}, WorkingDir: "/w", User: "1000:1000", Entrypoint: []string{"/init"}, Cmd: []string{"a", "b"}}

// imageOf is an image of layers, with the parts that tests change.
type imageOf struct {
	os, arch string
	blobs    [][]byte // of the layers, as they are stored
	archives [][]byte // in them
}

func layers(t testing.TB, archives ...[]byte) imageOf {
	i := imageOf{os: "linux", arch: "amd64"}
	for n, a := range archives {
		i.archives = append(i.archives, a)
		switch n % 3 {
		case 0:
			i.blobs = append(i.blobs, compressed(t, a, "gzip"))
		case 1:
			i.blobs = append(i.blobs, compressed(t, a, "zstd"))
		default:
			i.blobs = append(i.blobs, a)
		}
	}
	return i
}

// add puts the image into the store and returns its manifest's descriptor.
func (s store) add(t testing.TB, i imageOf) Descriptor {
	t.Helper()
	c := imageConfig{OS: i.os, Architecture: i.arch, Config: testConfig}
	for _, a := range i.archives {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, "sha256:"+sum(string(a)))
	}
	m := manifest{Config: s.document(t, "application/vnd.oci.image.config.v1+json", c)}
	for _, blob := range i.blobs {
		m.Layers = append(m.Layers, s.blob(layerType+"+gzip", blob))
	}
	d := s.document(t, TypeManifest, m)
	d.Platform = &Platform{OS: i.os, Architecture: i.arch}
	return d
}

// index makes the store a layout of the manifests in list.
func (s store) index(t testing.TB, list ...Descriptor) store {
	t.Helper()
	document, err := json.Marshal(index{SchemaVersion: 2, Manifests: list})
	if err != nil {
		t.Fatal(err)
	}
	s["index.json"] = document
	s["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return s
}

// dir writes the store to a directory.
func (s store) dir(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range s {
		if err := os.MkdirAll(filepath.Join(root, path.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// open is the store as Blobs.
func (s store) open() Blobs {
	return &layoutBlobs{limit: 1 << 20, open: func(name string) (io.ReadCloser, error) {
		content, ok := s[name]
		if !ok {
			return nil, os.ErrNotExist
		}
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}

// tar writes the store to a tar file.
func (s store) tar(t testing.TB, more ...entry) []byte {
	t.Helper()
	var entries []entry
	for _, name := range slices.Sorted(maps.Keys(s)) {
		entries = append(entries, reg(name, string(s[name])))
	}
	return pack(t, append(entries, more...)...)
}

func fileOf(t testing.TB, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// simple is a layout of one image.
func simple(t testing.TB, archives ...[]byte) store {
	s := store{}
	return s.index(t, s.add(t, layers(t, archives...)))
}

// annotated names a manifest.
func annotated(d Descriptor, key, value string) Descriptor {
	d.Annotations = map[string]string{key: value}
	return d
}

// Layers as they are made by builders, well and badly.
func TestLayers(t *testing.T) {
	base := []entry{dir("d"), reg("d/a", "1"), reg("d/b", "1"), dir("d/e"), reg("d/e/f", "1"), reg("x", "1"), hard("y", "x"), sym("l", "d")}
	const all = "d/ d/a d/b d/e/ d/e/f l x* y*"
	for name, c := range map[string]struct {
		upper []entry
		want  string
	}{
		"nothing":                       {nil, all},
		"file":                          {[]entry{reg("d/.wh.a", "")}, "d/ d/b d/e/ d/e/f l x* y*"},
		"directory":                     {[]entry{reg(".wh.d", "")}, "l x* y*"},
		"one of two names":              {[]entry{reg(".wh.x", "")}, "d/ d/a d/b d/e/ d/e/f l y"},
		"link":                          {[]entry{reg(".wh.l", "")}, "d/ d/a d/b d/e/ d/e/f x* y*"},
		"what does not exist":           {[]entry{reg(".wh.no", ""), reg("no/.wh.no", ""), reg("no/.wh..wh..opq", ""), reg("x/.wh.z", "")}, all},
		"then made anew":                {[]entry{reg("d/.wh.a", ""), reg("d/a", "2")}, all},
		"made anew before":              {[]entry{reg("d/a", "2"), reg("d/.wh.a", "")}, all},
		"opaque":                        {[]entry{dir("d"), reg("d/.wh..wh..opq", ""), reg("d/n", "")}, "d/ d/n l x* y*"},
		"opaque last":                   {[]entry{dir("d"), reg("d/n", ""), reg("d/.wh..wh..opq", "")}, "d/ d/n l x* y*"},
		"opaque unlisted":               {[]entry{reg("d/n", ""), reg("d/.wh..wh..opq", "")}, "d/ d/n l x* y*"},
		"opaque, deeper":                {[]entry{reg("d/e/n", ""), reg("d/.wh..wh..opq", "")}, "d/ d/e/ d/e/n l x* y*"},
		"opaque below":                  {[]entry{reg("d/e/.wh..wh..opq", "")}, "d/ d/a d/b d/e/ l x* y*"},
		"opaque root":                   {[]entry{reg(".wh..wh..opq", ""), reg("n", "")}, "n"},
		"opaque twice":                  {[]entry{reg("d/.wh..wh..opq", ""), reg("d/n", ""), reg("d/.wh..wh..opq", "")}, "d/ d/n l x* y*"},
		"directory, unlisted":           {[]entry{reg("d/e/n", ""), reg(".wh.d", "")}, "d/ d/e/ d/e/n l x* y*"},
		"directory, anew before":        {[]entry{dir("d"), reg(".wh.d", "")}, "d/ l x* y*"},
		"through a link":                {[]entry{reg("l/.wh.a", "")}, "d/ d/b d/e/ d/e/f l x* y*"},
		"bookkeeping of aufs":           {[]entry{dir(".wh..wh.plnk"), reg(".wh..wh.aufs", ""), reg("d/.wh..wh.orph", "")}, all},
		"link to the layer below":       {[]entry{hard("z", "x")}, "d/ d/a d/b d/e/ d/e/f l x** y** z**"},
		"link to the layer below, away": {[]entry{hard("z", "x"), reg(".wh.x", ""), reg(".wh.y", "")}, "d/ d/a d/b d/e/ d/e/f l z"},
		"directory to file":             {[]entry{reg("d", "2")}, "d l x* y*"},
		"file to directory":             {[]entry{dir("x"), reg("x/n", "")}, "d/ d/a d/b d/e/ d/e/f l x/ x/n y"},
		"link to directory":             {[]entry{dir("l"), reg("l/n", "")}, "d/ d/a d/b d/e/ d/e/f l/ l/n x* y*"},
	} {
		s := simple(t, pack(t, base...), pack(t, c.upper...))
		image := build(t, Layout(s.dir(t), ""), Options{})
		if got := image.names(t); got != c.want {
			t.Errorf("%s: %s\nnot %s", name, got, c.want)
		}
	}
}

// A third layer sees what two have made, and hides its own share once more.
func TestThreeLayers(t *testing.T) {
	s := simple(t, pack(t, dir("d"), reg("d/a", "1")), pack(t, reg("d/.wh..wh..opq", ""), reg("d/b", "2")),
		pack(t, reg("d/.wh..wh..opq", ""), reg("d/c", "3"), reg("e", "")))
	if got := build(t, Layout(s.dir(t), ""), Options{}).names(t); got != "d/ d/c e" {
		t.Error(got)
	}
}

func TestBadWhiteouts(t *testing.T) {
	for _, name := range []string{".wh.", "d/.wh..", ".wh...", "../.wh.x"} {
		s := simple(t, pack(t, dir("d"), reg(name, "")))
		refused(t, Layout(s.dir(t), ""), Options{}, ErrFormat)
	}
	s := simple(t, pack(t, reg(".wh.a", ""), reg(".wh.a", ""), reg(".wh..wh..opq", ""), reg(".wh..wh.x", "")))
	refused(t, Layout(s.dir(t), ""), Options{Limits: Limits{Entries: 3}}, ErrLimit)
}

// dockerSave is the archive of docker save, as old and new versions write it.
func dockerSave(t testing.TB, old bool, tags []string, archives ...[]byte) []byte {
	t.Helper()
	s := store{}
	i := layers(t, archives...)
	i.blobs = i.archives
	var m manifest
	if err := json.Unmarshal(s["blobs/sha256/"+strings.TrimPrefix(s.add(t, i).Digest, "sha256:")], &m); err != nil {
		t.Fatal(err)
	}
	name := func(d Descriptor) string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }
	image := dockerImage{Config: name(m.Config), RepoTags: tags}
	var links []entry
	for n, l := range m.Layers {
		image.Layers = append(image.Layers, name(l))
		if old {
			image.Layers[n] = strings.Repeat("0", 63) + string(rune('0'+n)) + "/layer.tar"
			if n == len(m.Layers)-1 && n > 0 { // the newest is shared with another image
				s["shared/layer.tar"] = s[name(l)]
				links = append(links, sym(image.Layers[n], "../shared/layer.tar"))
			} else {
				s[image.Layers[n]] = s[name(l)]
			}
			delete(s, name(l))
		}
	}
	if old {
		config := s[image.Config]
		delete(s, image.Config)
		image.Config = path.Base(image.Config) + ".json"
		s[image.Config] = config
	}
	document, err := json.Marshal([]dockerImage{image})
	if err != nil {
		t.Fatal(err)
	}
	s["manifest.json"] = document
	return s.tar(t, links...)
}

// One image, however it is kept, is one file system.
func TestSameFromEverywhere(t *testing.T) {
	archives := [][]byte{
		pack(t, dir("d"), reg("d/a", pattern(5000)), reg("gone", "x")),
		pack(t, reg(".wh.gone", ""), reg("d/b", pattern(6000))),
		pack(t, hard("c", "d/b")),
	}
	s := simple(t, archives...)
	want := build(t, Layout(s.dir(t), ""), Options{})
	want.fsck(t)
	if got := want.names(t); got != "c* d/ d/a d/b*" {
		t.Error(got)
	}
	if !reflect.DeepEqual(want.Config, testConfig) {
		t.Errorf("%+v", want.Config)
	}
	tags := []string{"debian:12", "debian:latest"}
	for name, src := range map[string]Source{
		"tar":            Archive(fileOf(t, s.tar(t)), ""),
		"tar.gz":         Archive(fileOf(t, compressed(t, s.tar(t), "gzip")), ""),
		"docker old":     Archive(fileOf(t, dockerSave(t, true, tags, archives...)), ""),
		"docker new":     Archive(fileOf(t, dockerSave(t, false, tags, archives...)), "debian:12"),
		"docker, a tag":  Archive(fileOf(t, dockerSave(t, true, tags, archives...)), "docker.io/library/debian:latest"),
		"docker, no tag": Archive(fileOf(t, dockerSave(t, true, nil, archives...)), ""),
		"docker tar.zst": Archive(fileOf(t, compressed(t, dockerSave(t, false, tags, archives...), "zstd")), ""),
	} {
		got := build(t, src, Options{})
		if got.Sum != want.Sum || !reflect.DeepEqual(got.Config, want.Config) {
			t.Errorf("%s: another image, %+v", name, got.Info)
		}
	}
}

func TestChoice(t *testing.T) {
	s := store{}
	image := func(name string) imageOf { return layers(t, pack(t, reg(name, ""))) }
	amd := s.add(t, image("amd64"))
	arm := image("arm64")
	arm.arch = "arm64"
	armDescriptor := s.add(t, arm)
	other := s.add(t, image("other"))
	unsaid := s.add(t, image("unsaid"))
	unsaid.Platform = nil
	v3 := s.add(t, image("v3"))
	v3.Platform = &Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}
	attestation := s.blob("application/vnd.in-toto+json", []byte("{}"))
	attestation.Platform = &Platform{OS: "unknown", Architecture: "unknown"}
	nested := s.document(t, TypeIndex, index{Manifests: []Descriptor{armDescriptor, amd, attestation}})
	deep := nested
	for range maxIndexes {
		deep = s.document(t, TypeIndex, index{Manifests: []Descriptor{deep}})
	}
	for name, c := range map[string]struct {
		list []Descriptor
		ref  string
		want string // the image's only file
		err  error
	}{
		"the only one":       {[]Descriptor{amd}, "", "amd64", nil},
		"platform":           {[]Descriptor{armDescriptor, attestation, amd}, "", "amd64", nil},
		"of all amd64":       {[]Descriptor{v3, amd}, "", "amd64", nil},
		"platform not said":  {[]Descriptor{armDescriptor, unsaid}, "", "unsaid", nil},
		"index in the index": {[]Descriptor{nested}, "", "amd64", nil},
		"by name":            {[]Descriptor{annotated(amd, indexRef, "1"), annotated(other, indexRef, "2")}, "2", "other", nil},
		"by long name":       {[]Descriptor{annotated(amd, containerdRef, "a"), annotated(other, containerdRef, "b")}, "b", "other", nil},
		"name of one of two": {[]Descriptor{annotated(amd, indexRef, "1"), annotated(other, indexRef, "2")}, "", "", ErrNoImage},
		"no such name":       {[]Descriptor{annotated(amd, indexRef, "1")}, "2", "", ErrNoImage},
		"no such platform":   {[]Descriptor{armDescriptor, v3}, "", "", ErrNoImage},
		"none":               {nil, "", "", ErrNoImage},
		"too deep":           {[]Descriptor{deep}, "", "", ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			src := Layout(s.index(t, c.list...).dir(t), c.ref)
			if c.err != nil {
				refused(t, src, Options{}, c.err)
				return
			}
			if got := build(t, src, Options{}).names(t); got != c.want {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
	// An image that says one thing in the index and another in its configuration.
	armDescriptor.Platform = amd.Platform
	refused(t, Layout(s.index(t, armDescriptor).dir(t), ""), Options{}, ErrNoImage)
}

func TestTwoImagesInAnArchive(t *testing.T) {
	s := store{"manifest.json": []byte(`[{"Config":"a","RepoTags":["one:1"]},{"Config":"b","RepoTags":["two:2"]}]`)}
	err := refused(t, Archive(fileOf(t, s.tar(t)), ""), Options{}, ErrNoImage)
	if !strings.Contains(err.Error(), `"one:1" "two:2"`) {
		t.Error(err)
	}
	refused(t, Archive(fileOf(t, s.tar(t)), "three:3"), Options{}, ErrNoImage)
	refused(t, Archive(fileOf(t, s.tar(t)), "two:2"), Options{}, ErrFormat) // it is not there
}

// Every part of an image is checked against what names it.
func TestDigests(t *testing.T) {
	archive := pack(t, reg("a", pattern(3000)))
	digits := func(d Descriptor) string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }
	for name, change := range map[string]func(s store, m *manifest, d *Descriptor){
		"manifest":       func(s store, _ *manifest, d *Descriptor) { s[digits(*d)] = append(s[digits(*d)], ' ') },
		"manifest short": func(_ store, _ *manifest, d *Descriptor) { d.Size++ },
		"configuration": func(s store, m *manifest, _ *Descriptor) {
			s[digits(m.Config)] = bytes.Replace(s[digits(m.Config)], []byte("1000"), []byte("0000"), 1)
		},
		"layer": func(s store, m *manifest, _ *Descriptor) {
			blob := slices.Clone(s[digits(m.Layers[0])])
			blob[len(blob)-1] ^= 1
			s[digits(m.Layers[0])] = blob
		},
		"layer of other content": func(s store, m *manifest, _ *Descriptor) {
			s[digits(m.Layers[0])] = compressed(t, pack(t, reg("b", pattern(3000))), "gzip")
		},
		"layer that is no archive": func(s store, m *manifest, _ *Descriptor) { s[digits(m.Layers[0])] = []byte("evil") },
		"layer cut":                func(s store, m *manifest, _ *Descriptor) { s[digits(m.Layers[0])] = s[digits(m.Layers[0])][:100] },
		"layer longer": func(s store, m *manifest, _ *Descriptor) {
			s[digits(m.Layers[0])] = append(s[digits(m.Layers[0])], 0)
		},
	} {
		s := store{}
		d := s.add(t, layers(t, archive))
		var m manifest
		if err := json.Unmarshal(s[digits(d)], &m); err != nil {
			t.Fatal(err)
		}
		change(s, &m, &d)
		t.Run(name, func(t *testing.T) { refused(t, Layout(s.index(t, d).dir(t), ""), Options{}, ErrDigest) })
	}
	t.Run("archive in a layer", func(t *testing.T) {
		s := store{}
		i := layers(t, archive)
		i.archives[0] = pack(t, reg("b", ""))
		refused(t, Layout(s.index(t, s.add(t, i)).dir(t), ""), Options{}, ErrDigest)
	})
	t.Run("docker", func(t *testing.T) {
		data := dockerSave(t, false, nil, archive)
		at := bytes.Index(data, []byte("1000:1000"))
		data[at]++
		refused(t, Archive(fileOf(t, data), ""), Options{}, ErrDigest)
		data[at]--
		data[bytes.Index(data, []byte("1,2,3,4,"))]++
		refused(t, Archive(fileOf(t, data), ""), Options{}, ErrDigest)
	})
}

// change returns an image of which a document was changed before it was named.
func changed(t *testing.T, change func(c *imageConfig, m *manifest)) Source {
	t.Helper()
	s := store{}
	archive := pack(t, reg("a", ""))
	c := imageConfig{OS: "linux", Architecture: "amd64"}
	c.RootFS.DiffIDs = []string{"sha256:" + sum(string(archive))}
	m := manifest{Layers: []Descriptor{s.blob(layerType, archive)}}
	change(&c, &m)
	if m.Config.Digest == "" {
		m.Config = s.document(t, "", c)
	}
	return Layout(s.index(t, s.document(t, TypeManifest, m)).dir(t), "")
}

func TestHostileImages(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *imageConfig, m *manifest)
		want   error
	}{
		"fewer digests":     {func(c *imageConfig, _ *manifest) { c.RootFS.DiffIDs = nil }, ErrFormat},
		"more digests":      {func(c *imageConfig, _ *manifest) { c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, "") }, ErrFormat},
		"empty digest":      {func(c *imageConfig, _ *manifest) { c.RootFS.DiffIDs[0] = "" }, ErrFormat},
		"other digest":      {func(_ *imageConfig, m *manifest) { m.Layers[0].Digest = "md5:00" }, ErrFormat},
		"path as a digest":  {func(_ *imageConfig, m *manifest) { m.Layers[0].Digest = "sha256:../../index.json" }, ErrFormat},
		"upper case":        {func(_ *imageConfig, m *manifest) { m.Layers[0].Digest = "sha256:" + strings.Repeat("A", 64) }, ErrFormat},
		"missing layer":     {func(_ *imageConfig, m *manifest) { m.Layers[0].Digest = "sha256:" + strings.Repeat("a", 64) }, ErrFormat},
		"missing config":    {func(_ *imageConfig, m *manifest) { m.Config = Descriptor{Digest: "sha256:" + strings.Repeat("a", 64)} }, ErrFormat},
		"negative size":     {func(_ *imageConfig, m *manifest) { m.Layers[0].Size = -1 }, ErrFormat},
		"huge size":         {func(_ *imageConfig, m *manifest) { m.Layers[0].Size = 1 << 60 }, ErrLimit},
		"huge config":       {func(_ *imageConfig, m *manifest) { m.Config = Descriptor{Digest: m.Layers[0].Digest, Size: 1 << 40} }, ErrLimit},
		"config of no JSON": {func(_ *imageConfig, m *manifest) { m.Config = m.Layers[0] }, ErrFormat},
		"layer type":        {func(_ *imageConfig, m *manifest) { m.Layers[0].MediaType = "application/vnd.in-toto+json" }, ErrFormat},
		"operating system":  {func(c *imageConfig, _ *manifest) { c.OS = "windows" }, ErrNoImage},
		"many layers": {func(c *imageConfig, m *manifest) {
			for range 300 {
				c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, c.RootFS.DiffIDs[0])
				m.Layers = append(m.Layers, m.Layers[0])
			}
		}, ErrLimit},
	} {
		t.Run(name, func(t *testing.T) { refused(t, changed(t, c.change), Options{}, c.want) })
	}
}

func TestHostileArchives(t *testing.T) {
	digits := strings.Repeat("a", 64)
	docker := func(manifest string, more ...entry) []byte {
		return pack(t, append([]entry{reg("manifest.json", manifest)}, more...)...)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"nothing":                {nil, ErrFormat},
		"text":                   {[]byte(pattern(2000)), ErrFormat},
		"empty archive":          {pack(t), ErrFormat},
		"root file system":       {pack(t, dir("etc"), reg("etc/passwd", "")), ErrFormat},
		"no JSON":                {docker("}"), ErrFormat},
		"no image":               {docker("[]"), ErrNoImage},
		"null":                   {docker("null"), ErrNoImage},
		"other JSON":             {docker(`{"Config":1}`), ErrFormat},
		"nested JSON":            {docker(strings.Repeat("[", 100_000)), ErrFormat},
		"no configuration":       {docker(`[{"Config":"x"}]`), ErrFormat},
		"nameless configuration": {docker(`[{"Config":"x"}]`, reg("x", "{}")), ErrFormat},
		"path out":               {docker(`[{"Config":"../../etc/passwd"}]`), ErrFormat},
		"loop of links":          {docker(`[{"Config":"x"}]`, sym("x", "y"), sym("y", "x")), ErrFormat},
		"link to itself":         {pack(t, sym("manifest.json", "manifest.json")), ErrFormat},
		"link out":               {docker(`[{"Config":"x"}]`, sym("x", "/etc/passwd")), ErrFormat},
		"directory":              {docker(`[{"Config":"x"}]`, dir("x")), ErrFormat},
		"long document":          {docker(strings.Repeat(" ", 5<<20)), ErrLimit},
		"long index":             {pack(t, reg("index.json", strings.Repeat(" ", 5<<20))), ErrLimit},
		"lying size":             {slices.Concat(raw("manifest.json", tar.TypeReg, 1<<30, nil), end), ErrFormat},
		"wrong digest":           {docker(`[{"Config":"`+digits+`.json"}]`, reg(digits+".json", "{}")), ErrDigest},
		"cut gzip":               {compressed(t, docker("[]"), "gzip")[:60], ErrFormat},
	} {
		t.Run(name, func(t *testing.T) { refused(t, Archive(fileOf(t, c.data), ""), Options{}, c.want) })
	}
	refused(t, Archive(fileOf(t, bomb(t, 64<<20)), ""), Options{Limits: Limits{Content: 1 << 20}}, ErrLimit)
	refused(t, Archive(fileOf(t, pack(t, dir("a"), dir("b"), dir("c"))), ""), Options{Limits: Limits{Entries: 2}}, ErrLimit)
	refused(t, Archive(filepath.Join(t.TempDir(), "none"), ""), Options{}, os.ErrNotExist)
}

func TestHostileLayouts(t *testing.T) {
	root := t.TempDir()
	refused(t, Layout(root, ""), Options{}, ErrFormat) // nothing in it
	must(t, os.Symlink("/etc/passwd", filepath.Join(root, "index.json")))
	refused(t, Layout(root, ""), Options{}, nil)
	must(t, os.Remove(filepath.Join(root, "index.json")), os.Mkdir(filepath.Join(root, "index.json"), 0o755))
	refused(t, Layout(root, ""), Options{}, ErrFormat)
	refused(t, Layout(filepath.Join(root, "none"), ""), Options{}, os.ErrNotExist)
}

// All layers together are held to the limits.
func TestLimitsOverLayers(t *testing.T) {
	one := pack(t, reg("a", pattern(4000)))
	two := pack(t, reg("a", pattern(4001)))
	dir := simple(t, one, two).dir(t)
	refused(t, Layout(dir, ""), Options{Limits: Limits{Content: 8000}}, ErrLimit)
	refused(t, Layout(dir, ""), Options{Limits: Limits{Layers: 1}}, ErrLimit)
	refused(t, Layout(dir, ""), Options{Limits: Limits{Entries: 1}}, ErrLimit)
	refused(t, Layout(dir, ""), Options{Limits: Limits{Document: 100}}, ErrLimit)
	var last Progress
	image := build(t, Layout(dir, ""), Options{Limits: Limits{Content: 20_000, Entries: 2, Layers: 2}, Progress: func(p Progress) { last = p }})
	if image.read(t, "a") != pattern(4001) {
		t.Error("the lower layer is on top")
	}
	if last.Layer != 2 || last.Layers != 2 || last.Entries != 2 || last.Bytes != last.Total || last.Total == 0 {
		t.Errorf("%+v", last)
	}
}

// failing is a store whose answers end in the middle.
type failing struct {
	layoutBlobs
	err error
}

var errLine = errors.New("the line is cut")

func (f *failing) Root(context.Context) (string, []byte, error) { return "", nil, f.err }

// endless is a store whose blobs do not end where they should.
type endless struct{ Blobs }

func (e endless) Open(ctx context.Context, d Descriptor) (io.ReadCloser, error) {
	r, err := e.Blobs.Open(ctx, d)
	if err != nil || d.MediaType != layerType+"+gzip" {
		return r, err
	}
	return io.NopCloser(io.MultiReader(r, io.LimitReader(zeros{}, 16<<20), iotest.ErrReader(errLine))), nil
}

// Reading stops where a blob should end.
func TestEndlessBlob(t *testing.T) {
	refused(t, Image(endless{simple(t, pack(t)).open()}), Options{}, ErrDigest)
}

func TestStoreErrors(t *testing.T) {
	refused(t, Image(&failing{err: errLine}), Options{}, errLine)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "image")
	if _, err := Build(ctx, path, Layout(simple(t, pack(t)).dir(t), ""), Options{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
