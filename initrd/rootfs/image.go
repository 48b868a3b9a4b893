package rootfs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
)

// Blobs is where a container image is kept: a layout, an archive, a registry. What
// it returns is checked here; it may be anything.
type Blobs interface {
	// Root returns the index or manifest that the image begins with, and its media type.
	Root(ctx context.Context) (mediaType string, document []byte, err error)
	// Open returns the content of a blob as it is stored.
	Open(ctx context.Context, d Descriptor) (io.ReadCloser, error)
}

// Descriptor is how the documents of an image name a blob (OCI image specification,
// "Content Descriptors").
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"` // "sha256:" and 64 hexadecimal digits, once checked
	Size        int64             `json:"size"`
	Platform    *Platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Platform is what a manifest in an index is for.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// Hex returns the digits of the digest, which are safe as a file name, or an error if
// the digest is anything but a SHA-256.
func (d Descriptor) Hex() (string, error) {
	digits, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok || !isHex(digits) {
		return "", fmt.Errorf("%w: digest %.100q is not a SHA-256", ErrFormat, d.Digest)
	}
	return digits, nil
}

// check says whether d names a blob of at most limit bytes.
func (d Descriptor) check(limit int64) error {
	switch _, err := d.Hex(); {
	case err != nil:
		return err
	case d.Size < 0:
		return fmt.Errorf("%w: %s has a negative size", ErrFormat, d.Digest)
	case d.Size > limit:
		return fmt.Errorf("%w: %s has more than %d bytes", ErrLimit, d.Digest, limit)
	}
	return nil
}

func isHex(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// The media types of indexes and manifests.
const (
	TypeIndex          = "application/vnd.oci.image.index.v1+json"
	TypeManifest       = "application/vnd.oci.image.manifest.v1+json"
	TypeDockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	TypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// layerTypes begin the media types of layers that are tar archives.
var layerTypes = []string{
	"application/vnd.oci.image.layer.v1.tar",
	"application/vnd.oci.image.layer.nondistributable.v1.tar",
	"application/vnd.docker.image.rootfs.diff.tar",
	"application/vnd.docker.image.rootfs.foreign.diff.tar",
}

// maxIndexes bounds how many indexes lead to a manifest.
const maxIndexes = 4

// index is an image index or a manifest list.
type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Manifests     []Descriptor `json:"manifests"`
}

// manifest is an image manifest.
type manifest struct {
	Config Descriptor   `json:"config"`
	Layers []Descriptor `json:"layers"`
}

// imageConfig is what of an image's configuration is used here.
type imageConfig struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Config       Config `json:"config"`
	RootFS       struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layer is a layer to apply. Its blob and the archive in it have digests of their own.
type layer struct {
	name string
	blob Descriptor // without a digest if the store has none
	diff Descriptor // of the archive, with its digest alone
	open func(context.Context) (io.ReadCloser, error)
}

// Image reads the image for linux/amd64 in blobs. Documents and layers are checked
// against their digests; nothing of an image that fails is ever published.
func Image(blobs Blobs) Source { return imageSource{blobs} }

type imageSource struct{ blobs Blobs }

func (s imageSource) read(ctx context.Context, b *builder) (Config, error) {
	mediaType, document, err := s.blobs.Root(ctx)
	if err != nil {
		return Config{}, err
	}
	m, err := b.findManifest(ctx, s.blobs, mediaType, document)
	if err != nil {
		return Config{}, err
	}
	document, err = b.document(ctx, s.blobs, m.Config)
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	var layers []layer
	for _, d := range m.Layers {
		if !slices.ContainsFunc(layerTypes, func(t string) bool { return strings.HasPrefix(d.MediaType, t) }) {
			return Config{}, fmt.Errorf("%w: layer of type %.100q", ErrFormat, d.MediaType)
		}
		if err := d.check(b.limits.Content); err != nil {
			return Config{}, err
		}
		layers = append(layers, layer{name: d.Digest, blob: d, open: func(ctx context.Context) (io.ReadCloser, error) {
			return s.blobs.Open(ctx, d)
		}})
	}
	return b.apply(ctx, document, layers)
}

// findManifest follows indexes down to the manifest for linux/amd64.
func (b *builder) findManifest(ctx context.Context, blobs Blobs, mediaType string, document []byte) (manifest, error) {
	for range maxIndexes {
		switch documentType(mediaType, document) {
		case TypeManifest, TypeDockerManifest:
			var m manifest
			return m, unmarshal("manifest", document, &m)
		case TypeIndex, TypeDockerIndex:
		default:
			return manifest{}, fmt.Errorf("%w: document of type %.100q", ErrFormat, mediaType)
		}
		var list index
		if err := unmarshal("index", document, &list); err != nil {
			return manifest{}, err
		}
		d, err := choose(list.Manifests)
		if err != nil {
			return manifest{}, err
		}
		if document, err = b.document(ctx, blobs, d); err != nil {
			return manifest{}, fmt.Errorf("manifest: %w", err)
		}
		mediaType = d.MediaType
	}
	return manifest{}, fmt.Errorf("%w: more than %d indexes in a row", ErrFormat, maxIndexes)
}

// documentType is the type that was given, or the one the document gives itself.
func documentType(given string, document []byte) string {
	if given != "" {
		return given
	}
	var self struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
	}
	switch err := json.Unmarshal(document, &self); {
	case err != nil:
		return ""
	case self.MediaType != "":
		return self.MediaType
	case self.Manifests != nil:
		return TypeIndex
	}
	return TypeManifest
}

// choose returns the first manifest for linux/amd64, else the first that does not say
// what it is for. A variant asks for a newer processor than any amd64.
func choose(list []Descriptor) (Descriptor, error) {
	fits := func(d Descriptor) bool {
		return d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == "amd64" &&
			(d.Platform.Variant == "" || d.Platform.Variant == "v1")
	}
	unsaid := func(d Descriptor) bool { return d.Platform == nil }
	for _, good := range []func(Descriptor) bool{fits, unsaid} {
		if i := slices.IndexFunc(list, good); i >= 0 {
			return list[i], nil
		}
	}
	return Descriptor{}, fmt.Errorf("%w: none of %d manifests is for linux/amd64", ErrNoImage, len(list))
}

func unmarshal(what string, document []byte, v any) error {
	if err := json.Unmarshal(document, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFormat, what, err)
	}
	return nil
}

// document reads the small blob d, and believes nothing before its digest fits.
func (b *builder) document(ctx context.Context, blobs Blobs, d Descriptor) ([]byte, error) {
	if err := d.check(b.limits.Document); err != nil {
		return nil, err
	}
	r, err := blobs.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	v := newVerifier(&contextReader{ctx, r}, d)
	var content bytes.Buffer
	if _, err := content.ReadFrom(v); err != nil {
		return nil, err
	}
	return content.Bytes(), v.finish()
}

// readDocument reads a small file that has no digest.
func (b *builder) readDocument(r io.Reader) ([]byte, error) {
	return readLimited(r, b.limits.Document)
}

func readLimited(r io.Reader, limit int64) ([]byte, error) {
	document, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(document)) > limit {
		err = fmt.Errorf("%w: document of more than %d bytes", ErrLimit, limit)
	}
	return document, err
}

// apply puts layers on top of each other, the first at the bottom.
func (b *builder) apply(ctx context.Context, document []byte, layers []layer) (Config, error) {
	var c imageConfig
	if err := unmarshal("configuration", document, &c); err != nil {
		return Config{}, err
	}
	if c.OS != "linux" || c.Architecture != "amd64" {
		return Config{}, fmt.Errorf("%w: the image is for %.40q/%.40q", ErrNoImage, c.OS, c.Architecture)
	}
	if len(c.RootFS.DiffIDs) != len(layers) {
		return Config{}, fmt.Errorf("%w: %d layers, but digests of %d", ErrFormat, len(layers), len(c.RootFS.DiffIDs))
	}
	if len(layers) > b.limits.Layers {
		return Config{}, fmt.Errorf("%w: more than %d layers", ErrLimit, b.limits.Layers)
	}
	b.progress.Layers = len(layers)
	for _, l := range layers {
		b.progress.Total += max(0, l.blob.Size)
	}
	for n, l := range layers {
		b.progress.Layer, b.tree.layer = n+1, n+1
		l.diff = Descriptor{Digest: c.RootFS.DiffIDs[n], Size: -1}
		if err := b.applyLayer(ctx, l); err != nil {
			return Config{}, fmt.Errorf("layer %d, %s: %w", n+1, l.name, err)
		}
		b.progress.tell()
	}
	return c.Config, nil
}

// applyLayer merges a layer into the tree. A blob that is not what its digest says is
// reported as that, whatever else is wrong with it.
func (b *builder) applyLayer(ctx context.Context, l layer) error {
	if _, err := l.diff.Hex(); err != nil {
		return err
	}
	r, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	blob := newVerifier(b.progress.read(&contextReader{ctx, r}), l.blob)
	err = b.applyArchive(blob, l.diff)
	if errors.Is(err, ErrLimit) {
		return err
	}
	return cmp.Or(blob.finish(), err)
}

func (b *builder) applyArchive(blob io.Reader, diff Descriptor) error {
	m, closer, err := b.decompressed(blob)
	if err != nil {
		return err
	}
	defer closer.Close()
	archive := newVerifier(m, diff)
	if err := b.readTar(archive, nil, true); err != nil {
		return err
	}
	return archive.finish()
}

// verifier reads a blob and compares it with its descriptor.
type verifier struct {
	r    io.Reader
	want Descriptor // nothing is compared with an empty digest or a negative size
	hash hash.Hash
	n    int64
}

func newVerifier(r io.Reader, want Descriptor) *verifier {
	return &verifier{r: r, want: want, hash: sha256.New()}
}

// Read implements io.Reader. It fails as soon as there is more than there should be.
func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.n += int64(n)
	if v.want.Size >= 0 && v.n > v.want.Size {
		return 0, fmt.Errorf("%w: more than the %d bytes of %s", ErrDigest, v.want.Size, v.want.Digest)
	}
	if v.want.Digest != "" {
		v.hash.Write(p[:n])
	}
	return n, err
}

// Verify compares a document with its digest, which is one of SHA-256.
func Verify(document []byte, digest string) error {
	d := Descriptor{Digest: digest, Size: int64(len(document))}
	if _, err := d.Hex(); err != nil {
		return err
	}
	return newVerifier(bytes.NewReader(document), d).finish()
}

// finish reads what is left and says whether the blob is the one wanted.
func (v *verifier) finish() error {
	if _, err := io.Copy(io.Discard, v); err != nil {
		return err
	}
	if v.want.Size >= 0 && v.n != v.want.Size {
		return fmt.Errorf("%w: %d of the %d bytes of %s", ErrDigest, v.n, v.want.Size, v.want.Digest)
	}
	if got := "sha256:" + hex.EncodeToString(v.hash.Sum(nil)); v.want.Digest != "" && got != v.want.Digest {
		return fmt.Errorf("%w: content of %s has %s", ErrDigest, v.want.Digest, got)
	}
	return nil
}
