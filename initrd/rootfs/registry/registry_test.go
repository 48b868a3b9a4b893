package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/forkvm/forkvm/initrd/rootfs"
)

const (
	configType = "application/vnd.oci.image.config.v1+json"
	layerType  = "application/vnd.oci.image.layer.v1.tar+gzip"
)

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// server is a registry and where it is.
type server struct {
	*httptest.Server
	host string
}

// serve starts a registry; wrap, if not nil, sees every request first.
func serve(t *testing.T, wrap func(http.Handler) http.Handler) server {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return server{s, strings.TrimPrefix(s.URL, "http://")}
}

func (s server) send(t *testing.T, method, path, mediaType string, content []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	req.SetBasicAuth("user", "password")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

func (s server) blob(t *testing.T, mediaType string, content []byte) rootfs.Descriptor {
	t.Helper()
	s.send(t, http.MethodPost, "/v2/owner/image/blobs/uploads/?digest="+digest(content), "application/octet-stream", content)
	return rootfs.Descriptor{MediaType: mediaType, Digest: digest(content), Size: int64(len(content))}
}

// manifest puts a document at a tag.
func (s server) manifest(t *testing.T, tag, mediaType string, v any) rootfs.Descriptor {
	t.Helper()
	document, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	s.send(t, http.MethodPut, "/v2/owner/image/manifests/"+tag, mediaType, document)
	return rootfs.Descriptor{MediaType: mediaType, Digest: digest(document), Size: int64(len(document))}
}

// archive is a tar archive of one file, and the same compressed.
func archive(t *testing.T, name string) (plain, compressed []byte) {
	t.Helper()
	var a, z bytes.Buffer
	w := tar.NewWriter(&a)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g := gzip.NewWriter(&z)
	if _, err := g.Write(a.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	return a.Bytes(), z.Bytes()
}

// push makes an image of two layers for a platform and puts it at a tag.
func (s server) push(t *testing.T, tag, arch string, manifestType string) rootfs.Descriptor {
	t.Helper()
	var list []rootfs.Descriptor
	var diffs []string
	for _, name := range []string{"one", "two-" + arch} {
		plain, compressed := archive(t, name)
		list = append(list, s.blob(t, layerType, compressed))
		diffs = append(diffs, digest(plain))
	}
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": arch, "config": map[string]any{"Env": []string{"A=b"}, "Cmd": []string{"sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := s.manifest(t, tag, manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": s.blob(t, configType, config), "layers": list,
	})
	d.Platform = &rootfs.Platform{OS: "linux", Architecture: arch}
	return d
}

// pull builds an image of ref and returns where it is.
func pull(t *testing.T, ctx context.Context, ref string, opts Options, build rootfs.Options) (rootfs.Info, error) {
	t.Helper()
	src, err := Image(ref, opts)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	info, err := rootfs.Build(ctx, filepath.Join(dir, "image"), src, build)
	if left, _ := os.ReadDir(dir); err != nil && len(left) > 0 {
		t.Errorf("left %v", left)
	}
	return info, err
}

// sum is that of an image with the files named.
func sum(t *testing.T, names ...string) [sha256.Size]byte {
	t.Helper()
	var a bytes.Buffer
	w := tar.NewWriter(&a)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := rootfs.Build(t.Context(), filepath.Join(t.TempDir(), "image"), rootfs.Tar(&a), rootfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return info.Sum
}

func TestPull(t *testing.T) {
	s := serve(t, nil)
	plain := s.push(t, "plain", "amd64", rootfs.TypeManifest)
	s.push(t, "docker", "amd64", rootfs.TypeDockerManifest)
	arm := s.push(t, "arm", "arm64", rootfs.TypeManifest)
	s.manifest(t, "index", rootfs.TypeIndex, map[string]any{"schemaVersion": 2, "manifests": []rootfs.Descriptor{arm, plain}})
	s.manifest(t, "latest", rootfs.TypeDockerIndex, map[string]any{"schemaVersion": 2, "manifests": []rootfs.Descriptor{arm, plain}})
	want := sum(t, "one", "two-amd64")
	for _, ref := range []string{":plain", ":docker", ":index", ":latest", "", "@" + plain.Digest} {
		var last rootfs.Progress
		info, err := pull(t, t.Context(), s.host+"/owner/image"+ref, Options{},
			rootfs.Options{Progress: func(p rootfs.Progress) { last = p }})
		if err != nil {
			t.Errorf("%q: %v", ref, err)
			continue
		}
		if info.Sum != want || !reflect.DeepEqual(info.Config, rootfs.Config{Env: []string{"A=b"}, Cmd: []string{"sh"}}) {
			t.Errorf("%q: %+v", ref, info)
		}
		if last.Layer != 2 || last.Layers != 2 || last.Bytes != last.Total || last.Total == 0 {
			t.Errorf("%q: %+v", ref, last)
		}
	}
	for _, ref := range []string{"image:arm", "image:none", "none:plain", "image@sha256:" + strings.Repeat("0", 64)} {
		if _, err := pull(t, t.Context(), s.host+"/owner/"+ref, Options{}, rootfs.Options{}); !errors.Is(err, rootfs.ErrNoImage) {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

func TestBadReference(t *testing.T) {
	for _, ref := range []string{"", "UPPER", "a:b:c", "a@sha256:0", "https://host/image"} {
		if _, err := Image(ref, Options{}); err == nil {
			t.Errorf("%q is accepted", ref)
		}
	}
}

// keychain has one name and password, for one host.
type keychain struct{ host, password string }

// Resolve implements authn.Keychain.
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if r.RegistryStr() != k.host {
		return authn.Anonymous, nil
	}
	return &authn.Basic{Username: "user", Password: k.password}, nil
}

func TestCredentials(t *testing.T) {
	s := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "user" || password != "password" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	s.push(t, "tag", "amd64", rootfs.TypeManifest)
	ref := s.host + "/owner/image:tag"
	if _, err := pull(t, t.Context(), ref, Options{Keychain: keychain{s.host, "password"}}, rootfs.Options{}); err != nil {
		t.Error(err)
	}
	for _, k := range []keychain{{s.host, "wrong"}, {"elsewhere", "password"}} {
		_, err := pull(t, t.Context(), ref, Options{Keychain: k}, rootfs.Options{})
		refusal, ok := errors.AsType[*transport.Error](err)
		if !ok || refusal.StatusCode != http.StatusUnauthorized {
			t.Errorf("%+v: %v", k, err)
		}
	}
}

// lying changes what a registry answers to requests for paths that contain something.
func lying(what string, change func([]byte) []byte) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, what) {
				next.ServeHTTP(w, r)
				return
			}
			recorder := httptest.NewRecorder()
			next.ServeHTTP(recorder, r)
			w.Header().Set("Content-Type", recorder.Header().Get("Content-Type"))
			w.WriteHeader(recorder.Code)
			_, _ = w.Write(change(recorder.Body.Bytes())) // the client may have gone
		})
	}
}

func TestLies(t *testing.T) {
	flip := func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b }
	longer := func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 1<<20)...) }
	shorter := func(b []byte) []byte { return b[:len(b)-1] }
	_, compressed := archive(t, "one")
	for name, c := range map[string]struct {
		what   string
		change func([]byte) []byte
		want   error
	}{
		"layer":          {"blobs/" + digest(compressed), flip, rootfs.ErrDigest},
		"longer layer":   {"blobs/" + digest(compressed), longer, rootfs.ErrDigest},
		"shorter layer":  {"blobs/" + digest(compressed), shorter, rootfs.ErrDigest},
		"all blobs":      {"blobs/", flip, rootfs.ErrDigest},
		"other manifest": {"manifests/sha256:", flip, rootfs.ErrDigest},
		"no manifest":    {"manifests/", func([]byte) []byte { return []byte("<html>") }, rootfs.ErrFormat},
		"large manifest": {"manifests/", func([]byte) []byte { return make([]byte, 5<<20) }, rootfs.ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, lying(c.what, c.change))
			d := s.push(t, "tag", "amd64", rootfs.TypeManifest)
			ref := ":tag"
			if name == "other manifest" {
				ref = "@" + d.Digest
			}
			if _, err := pull(t, t.Context(), s.host+"/owner/image"+ref, Options{}, rootfs.Options{}); !errors.Is(err, c.want) {
				t.Error(err)
			}
		})
	}
}

// A registry that stops answering, at whatever, holds nobody longer than the context.
func TestStalled(t *testing.T) {
	for _, what := range []string{"/v2/", "manifests/", "blobs/"} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			release := make(chan struct{})
			s := serve(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, what) {
						next.ServeHTTP(w, r)
						return
					}
					if what == "blobs/" { // in the middle of an answer
						w.Header().Set("Content-Length", "1000")
						w.WriteHeader(http.StatusOK)
						_ = http.NewResponseController(w).Flush() // the client may have gone
					}
					cancel()
					<-release
				})
			})
			t.Cleanup(func() { close(release) })
			s.push(t, "tag", "amd64", rootfs.TypeManifest)
			if _, err := pull(t, ctx, s.host+"/owner/image:tag", Options{}, rootfs.Options{}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// A line that is cut in the middle of a layer is an error of the transfer.
func TestCutLine(t *testing.T) {
	_, compressed := archive(t, "one")
	s := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, digest(compressed)) {
				w.Header().Set("Content-Length", fmt.Sprint(len(compressed)))
				_, _ = w.Write(compressed[:20])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	s.push(t, "tag", "amd64", rootfs.TypeManifest)
	if _, err := pull(t, t.Context(), s.host+"/owner/image:tag", Options{}, rootfs.Options{}); !errors.Is(err, ErrTransfer) || errors.Is(err, rootfs.ErrFormat) {
		t.Error(err)
	}
}
