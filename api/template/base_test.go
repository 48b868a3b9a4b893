package template

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/forkvm/forkvm/initrd/rootfs"
)

// container is an image with one layer, and a configuration.
type container struct {
	config, layer, manifest []byte
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func newContainer(t *testing.T, root []byte) container {
	t.Helper()
	c := container{layer: pack(t, root)}
	c.config = fmt.Appendf(nil, `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:%s"]},
		"config":{"Env":["PATH=/opt"],"WorkingDir":"/srv","User":"app","Entrypoint":["e"],"Cmd":["c"]}}`, sumText(string(root)))
	c.manifest = fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%d},
		"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:%s","size":%d}]}`,
		manifestType, sumText(string(c.config)), len(c.config), sumText(string(c.layer)), len(c.layer))
	return c
}

// putLayout writes it as an image layout to dir/layout.
func (c container) putLayout(t *testing.T, dir string) {
	t.Helper()
	for _, blob := range [][]byte{c.config, c.layer, c.manifest} {
		put(t, dir, "layout/blobs/sha256/"+sumText(string(blob)), string(blob))
	}
	put(t, dir, "layout/oci-layout", `{"imageLayoutVersion":"1.0.0"}`)
	put(t, dir, "layout/index.json", fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"size":%d,"digest":"sha256:%s"}]}`,
		manifestType, len(c.manifest), sumText(string(c.manifest))))
}

// putArchive writes it as docker save does to dir/saved.tar.
func (c container) putArchive(t *testing.T, dir string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	config := sumText(string(c.config)) + ".json"
	for name, text := range map[string]string{
		config: string(c.config), "layer.tar.gz": string(c.layer),
		"manifest.json": fmt.Sprintf(`[{"Config":%q,"RepoTags":["img:1"],"Layers":["layer.tar.gz"]}]`, config),
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "saved.tar", b.String())
}

// push sends it to a registry and returns its reference.
func (c container) push(t *testing.T, server string) string {
	t.Helper()
	send := func(method, url, kind string, body []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server+"/v2/img/"+url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			text, _ := io.ReadAll(resp.Body)
			t.Fatalf("%s %s: %s: %s", method, url, resp.Status, text)
		}
	}
	for _, blob := range [][]byte{c.config, c.layer} {
		send("POST", "blobs/uploads/?digest=sha256:"+sumText(string(blob)), "application/octet-stream", blob)
	}
	send("PUT", "manifests/1", manifestType, c.manifest)
	return strings.TrimPrefix(server, "http://") + "/img:1"
}

func pack(t *testing.T, b []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// TestBases: whatever way a root file system comes, its template begins as it
// says.
func TestBases(t *testing.T) {
	dir := t.TempDir()
	root, err := os.ReadFile(tinyRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "root.tar", string(root))
	put(t, dir, "root.tar.gz", string(pack(t, root)))
	put(t, dir, "tree/etc/name", "tiny\n")
	img := newContainer(t, root)
	img.putLayout(t, dir)
	img.putArchive(t, dir)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ofImage := Config{Env: []string{"PATH=/opt", "A=/opt"}, Workdir: "/srv/sub", User: "app", Cmd: []string{"e", "c"}}
	ofFiles := Config{Env: []string{"A=" + guestPath}, Workdir: "/sub"}
	for from, want := range map[string]Config{
		"./saved.tar": ofImage, "./layout": ofImage, img.push(t, server.URL): ofImage,
		"./root.tar": ofFiles, "./root.tar.gz": ofFiles, "./tree": ofFiles, filepath.Join(dir, "root.tar"): ofFiles,
	} {
		s, f := fakeStore(t, t.TempDir())
		spec := Spec{Name: "x", Source: []byte("FROM " + from + "\nENV A=$PATH\nWORKDIR sub"), Context: dir}
		info, err := s.Build(t.Context(), spec, BuildOptions{})
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		if diff := cmp.Diff(want, info.Config); diff != "" || info.Base == 0 {
			t.Errorf("%s: base of %d bytes, %s", from, info.Base, diff)
		}
		f.take()
		if again := build1(t, s, spec); again.Snapshot != info.Snapshot {
			t.Errorf("%s: another template the second time", from)
		}
		wantDid(t, f)
	}
	s, f := fakeStore(t, t.TempDir())
	spec := Spec{Name: "x", Source: []byte("FROM ./tree"), Context: dir}
	build1(t, s, spec)
	put(t, dir, "tree/etc/name", "other\n")
	f.take()
	build1(t, s, spec)
	wantDid(t, f, "boot")
}

func TestBaseRefuses(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "text", "no archive")
	put(t, dir, "layout/oci-layout", "{}")
	for from, want := range map[string]error{
		"./text": rootfs.ErrFormat, "./layout": rootfs.ErrFormat, "./none": fs.ErrNotExist, "/dev/null": nil, "localhost:1/none": nil, "Bad Name": rootfs.ErrNoImage,
	} {
		s, _ := fakeStore(t, t.TempDir())
		_, err := s.Build(t.Context(), Spec{Name: "x", Source: []byte("FROM '" + from + "'"), Context: dir}, BuildOptions{})
		if err == nil || !strings.Contains(err.Error(), "FROM "+from) || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", from, err)
		}
	}
	for _, context := range []string{"", dir} {
		s, _ := fakeStore(t, t.TempDir())
		_, err := s.Build(t.Context(), Spec{Name: "x", Source: []byte("FROM ./none"), Context: context, Confined: true}, BuildOptions{})
		if !errors.Is(err, ErrContext) {
			t.Errorf("in the context %q: %v", context, err)
		}
	}
}
