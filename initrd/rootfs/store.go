package rootfs

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/forkvm/forkvm/initrd/decompress"
)

// Layout reads an image from an OCI image layout: a directory with index.json and
// blobs. If it holds several images, ref says which: the annotation
// org.opencontainers.image.ref.name or io.containerd.image.name of its manifest.
func Layout(dir, ref string) Source { return layoutSource{dir, ref} }

type layoutSource struct{ dir, ref string }

func (s layoutSource) read(ctx context.Context, b *builder) (Config, error) {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return Config{}, err
	}
	defer root.Close()
	open := func(name string) (io.ReadCloser, error) { return openRegular(root, name) }
	return Image(&layoutBlobs{open: open, ref: s.ref, limit: b.limits.Document}).read(ctx, b)
}

// openRegular does not wait for the other end of a pipe.
func openRegular(root *os.Root, name string) (io.ReadCloser, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrFormat, name)
	}
	return root.Open(name)
}

const (
	layoutIndex    = "index.json"
	dockerManifest = "manifest.json"
	// indexRef and containerdRef are the annotations that hold names of images.
	indexRef      = "org.opencontainers.image.ref.name"
	containerdRef = "io.containerd.image.name"
)

// layoutBlobs is an image layout, whatever its files are in.
type layoutBlobs struct {
	open  func(name string) (io.ReadCloser, error)
	ref   string
	limit int64
}

// Root implements Blobs.
func (l *layoutBlobs) Root(context.Context) (string, []byte, error) {
	r, err := l.open(layoutIndex)
	if err != nil {
		return "", nil, missingFile(err, "image layout")
	}
	defer r.Close()
	document, err := readLimited(r, l.limit)
	if err != nil {
		return "", nil, err
	}
	var list index
	if err := unmarshal(layoutIndex, document, &list); err != nil {
		return "", nil, err
	}
	if list.Manifests, err = selectRef(list.Manifests, l.ref); err != nil {
		return "", nil, err
	}
	document, err = json.Marshal(list)
	return TypeIndex, document, err
}

// Open implements Blobs.
func (l *layoutBlobs) Open(_ context.Context, d Descriptor) (io.ReadCloser, error) {
	digits, err := d.Hex()
	if err != nil {
		return nil, err
	}
	r, err := l.open("blobs/sha256/" + digits)
	return r, missingFile(err, "complete image")
}

// missingFile says of what a file that does not exist would have been part.
func missingFile(err error, of string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: no %s: %w", ErrFormat, of, err)
	}
	return err
}

// selectRef returns the manifests with the name ref. Without one, all must belong to
// the same image.
func selectRef(list []Descriptor, ref string) ([]Descriptor, error) {
	var names []string
	var selected []Descriptor
	for _, d := range list {
		short, long := d.Annotations[indexRef], d.Annotations[containerdRef]
		if name := cmp.Or(long, short); !slices.Contains(names, name) && len(names) <= maxNames {
			names = append(names, name)
		}
		if ref == "" || ref == short || ref == long {
			selected = append(selected, d)
		}
	}
	return selected, onlyOne(ref, names, len(selected))
}

// maxNames bounds the names in an error message.
const maxNames = 16

// onlyOne says whether the choice of found images, by ref out of names, is clear.
func onlyOne(ref string, names []string, found int) error {
	quoted := fmt.Sprintf("%.100q", names[:min(len(names), maxNames)])
	switch {
	case found == 0 && ref != "":
		return fmt.Errorf("%w: %.100q is not among %s", ErrNoImage, ref, quoted)
	case found == 0:
		return fmt.Errorf("%w: the index is empty", ErrNoImage)
	case ref == "" && len(names) > 1:
		return fmt.Errorf("%w: name one of %s", ErrNoImage, quoted)
	}
	return nil
}

// Archive reads an image from a tar file: an image layout, or what "docker save" writes,
// of any version. The file may be compressed; then it is decompressed to a temporary
// file first. If it holds several images, ref says which: as for Layout, or a tag such as
// "debian:12".
func Archive(file, ref string) Source { return archiveSource{file, ref} }

type archiveSource struct{ file, ref string }

func (s archiveSource) read(ctx context.Context, b *builder) (Config, error) {
	f, err := b.openPlain(ctx, s.file)
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	a, err := b.indexArchive(ctx, f)
	if err != nil {
		return Config{}, err
	}
	if _, ok := a.files[dockerManifest]; ok {
		return b.readDocker(ctx, a, s.ref)
	}
	return Image(&layoutBlobs{open: a.open, ref: s.ref, limit: b.limits.Document}).read(ctx, b)
}

// openPlain opens the file called name, or, if that is compressed, a file without a name
// that holds what it decompresses to.
func (b *builder) openPlain(ctx context.Context, name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	head := make([]byte, tarMagicEnd)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		f.Close()
		return nil, err
	}
	format := decompress.Detect(head[:n])
	if isTar(head[:n]) || format == decompress.Unknown {
		return f, nil
	}
	defer f.Close()
	d, err := decompress.NewReader(&contextReader{ctx, bufio.NewReader(f)}, format, b.limits.Content)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return spool(filepath.Dir(b.image.f.Name()), d)
}

// spool writes r to a new file without a name, on the file system of dir.
func spool(dir string, r io.Reader) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".archive.*")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(f.Name()); err == nil {
		if _, err = io.Copy(f, r); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// archive is a tar file whose members are found by name.
type archive struct {
	f     *os.File
	files map[string]member
}

// member is a file in an archive, or another name for one.
type member struct {
	offset, size int64
	target       string
}

// indexArchive finds the files in f.
func (b *builder) indexArchive(ctx context.Context, f *os.File) (*archive, error) {
	a := &archive{f: f, files: map[string]member{}}
	r := tar.NewReader(&seekableContextReader{ctx, f})
	for {
		header, err := r.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, tarError(err)
		}
		parts, err := splitPath(header.Name)
		if err != nil {
			return nil, err
		}
		if err := b.count(parts, len(header.Linkname)); err != nil {
			return nil, err
		}
		name := strings.Join(parts, "/")
		switch header.Typeflag {
		case tar.TypeReg:
			// The reader has read the header and nothing else: it does not buffer.
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			a.files[name] = member{offset: at, size: header.Size}
		case tar.TypeSymlink: // how docker save wrote a layer that two images share
			a.files[name] = member{target: path.Join(path.Dir(name), header.Linkname)}
		case tar.TypeLink:
			a.files[name] = member{target: path.Clean(header.Linkname)}
		}
	}
}

// seekableContextReader lets a tar reader skip what it does not need.
type seekableContextReader struct {
	ctx context.Context
	*os.File
}

// Read implements io.Reader.
func (s *seekableContextReader) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.File.Read(p)
}

// find returns the file called name, through links.
func (a *archive) find(name string) (member, error) {
	name = path.Clean(name)
	for range maxHops {
		m, ok := a.files[name]
		if !ok {
			return member{}, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		if m.target == "" {
			return m, nil
		}
		name = m.target
	}
	return member{}, fmt.Errorf("%w: %.100q is a loop of links", ErrFormat, name)
}

// open returns the content of the file called name.
func (a *archive) open(name string) (io.ReadCloser, error) {
	m, err := a.find(name)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(io.NewSectionReader(a.f, m.offset, m.size)), nil
}

// dockerImage is an element of the manifest.json that docker save writes.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// readDocker reads an image of an archive by its manifest.json.
func (b *builder) readDocker(ctx context.Context, a *archive, ref string) (Config, error) {
	document, err := b.archiveDocument(a, dockerManifest)
	if err != nil {
		return Config{}, err
	}
	var images []dockerImage
	if err := unmarshal(dockerManifest, document, &images); err != nil {
		return Config{}, err
	}
	image, err := selectTag(images, ref)
	if err != nil {
		return Config{}, err
	}
	config, err := b.dockerConfig(a, image.Config)
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	var layers []layer
	for _, name := range image.Layers {
		m, err := a.find(name)
		if err != nil {
			return Config{}, missingFile(err, "complete image")
		}
		// The blob has no digest here; the archive in it has.
		layers = append(layers, layer{name: name, blob: Descriptor{Size: m.size},
			open: func(context.Context) (io.ReadCloser, error) { return a.open(name) }})
	}
	return b.apply(ctx, config, layers)
}

func (b *builder) archiveDocument(a *archive, name string) ([]byte, error) {
	r, err := a.open(name)
	if err != nil {
		return nil, missingFile(err, "complete image")
	}
	defer r.Close()
	return b.readDocument(r)
}

// dockerConfig reads the configuration, which is named after its digest in one of
// several ways.
func (b *builder) dockerConfig(a *archive, name string) ([]byte, error) {
	document, err := b.archiveDocument(a, name)
	if err != nil {
		return nil, err
	}
	digits := strings.TrimPrefix(strings.TrimSuffix(path.Base(name), ".json"), "sha256:")
	return document, Verify(document, "sha256:"+digits)
}

// selectTag returns the image that has the tag ref, or the only one.
func selectTag(images []dockerImage, ref string) (dockerImage, error) {
	var names []string
	var selected []dockerImage
	for _, i := range images {
		if len(names) <= maxNames {
			names = append(names, strings.Join(i.RepoTags, " "))
		}
		if ref == "" || slices.ContainsFunc(i.RepoTags, func(tag string) bool { return sameTag(tag, ref) }) {
			selected = append(selected, i)
		}
	}
	if err := onlyOne(ref, names, len(selected)); err != nil {
		return dockerImage{}, err
	}
	return selected[0], nil
}

// sameTag compares names of images, for which Docker has a short and a long form.
func sameTag(a, b string) bool {
	short := func(s string) string {
		return strings.TrimPrefix(strings.TrimPrefix(s, "docker.io/"), "library/")
	}
	return short(a) == short(b)
}
