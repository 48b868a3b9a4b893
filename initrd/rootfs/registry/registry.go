// Package registry reads container images from registries, as sources of root file
// systems. It is a package of its own so that only those who pull images link it.
//
// It fetches and authenticates, and believes nothing of what it gets: package rootfs
// chooses the platform and checks sizes and digests.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/forkvm/forkvm/initrd/rootfs"
)

// ErrTransfer is wrapped by errors about answers that broke off: trying again may help.
var ErrTransfer = errors.New("transfer broke off")

// Options are the choices of Image. The zero value is good.
type Options struct {
	// Insecure allows plain HTTP. Registries at localhost may be plain without it.
	Insecure bool
	// Keychain has the credentials. The default is authn.DefaultKeychain: those of
	// Docker's and Podman's configuration files.
	Keychain authn.Keychain
	// Transport makes the requests. The default is http.DefaultTransport.
	Transport http.RoundTripper
}

// Image reads the image for linux/amd64 that ref names, such as "debian:12",
// "ghcr.io/owner/image:tag" or "host:5000/image@sha256:…". Nothing is fetched before the
// source is read; the context of rootfs.Build bounds it then.
func Image(ref string, opts Options) (rootfs.Source, error) {
	var nameOptions []name.Option
	if opts.Insecure {
		nameOptions = append(nameOptions, name.Insecure)
	}
	parsed, err := name.ParseReference(ref, nameOptions...)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if opts.Keychain == nil {
		opts.Keychain = authn.DefaultKeychain
	}
	if opts.Transport == nil {
		opts.Transport = http.DefaultTransport
	}
	return rootfs.Image(&repository{ref: parsed, opts: opts}), nil
}

// maxRoot bounds, in bytes, the first document of an image, as registries do.
const maxRoot = 4 << 20

// repository implements rootfs.Blobs.
type repository struct {
	ref  name.Reference
	opts Options

	mu     sync.Mutex
	client *http.Client // set after the first handshake
}

// Root implements rootfs.Blobs.
func (r *repository) Root(ctx context.Context) (string, []byte, error) {
	resp, err := r.fetch(ctx, "manifests", r.ref.Identifier())
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	document, err := io.ReadAll(io.LimitReader(&body{resp.Body, r.ref}, maxRoot+1))
	if err != nil {
		return "", nil, cmp.Or(ctx.Err(), err)
	}
	if len(document) > maxRoot {
		return "", nil, fmt.Errorf("registry: %s: %w: manifest of more than %d bytes", r.ref, rootfs.ErrLimit, maxRoot)
	}
	if digest, ok := r.ref.(name.Digest); ok {
		if err := rootfs.Verify(document, digest.DigestStr()); err != nil {
			return "", nil, fmt.Errorf("registry: %s: %w", r.ref, err)
		}
	}
	// A type that cannot be parsed is none: the document may say what it is.
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return mediaType, document, nil
}

// manifestTypes are those that Root and Open ask for.
var manifestTypes = []string{rootfs.TypeManifest, rootfs.TypeDockerManifest, rootfs.TypeIndex, rootfs.TypeDockerIndex}

// Open implements rootfs.Blobs.
func (r *repository) Open(ctx context.Context, d rootfs.Descriptor) (io.ReadCloser, error) {
	kind := "blobs"
	for _, t := range manifestTypes {
		if d.MediaType == t {
			kind = "manifests"
		}
	}
	resp, err := r.fetch(ctx, kind, d.Digest)
	if err != nil {
		return nil, err
	}
	return &body{resp.Body, r.ref}, nil
}

// body is the content of an answer.
type body struct {
	io.ReadCloser
	ref name.Reference
}

// Read implements io.Reader. A line that is cut is no fault of the image's format, which is
// what the end of a file where none should be is elsewhere.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("registry: %s: %w: %s", b.ref, ErrTransfer, err)
	}
	return n, err
}

// fetch gets a manifest or a blob (OCI distribution specification, "Pulling manifests").
func (r *repository) fetch(ctx context.Context, kind, id string) (*http.Response, error) {
	client, err := r.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("registry: %s: %w", r.ref, cmp.Or(ctx.Err(), err))
	}
	repo := r.ref.Context()
	u := url.URL{Scheme: repo.Scheme(), Host: repo.RegistryStr(), Path: "/v2/" + repo.RepositoryStr() + "/" + kind + "/" + id}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if kind == "manifests" {
		req.Header.Set("Accept", strings.Join(manifestTypes, ","))
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("registry: %s: %w", r.ref, cmp.Or(ctx.Err(), err))
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		resp.Body.Close()
		return nil, fmt.Errorf("registry: %s: %w", r.ref, notFound(resp.StatusCode, err))
	}
	return resp, nil
}

// notFound tells an image that is not there from other refusals.
func notFound(status int, err error) error {
	if status == http.StatusNotFound {
		return fmt.Errorf("%w: %w", rootfs.ErrNoImage, err)
	}
	return err
}

// connect returns a client that is logged in where that is needed.
func (r *repository) connect(ctx context.Context) (*http.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		return r.client, nil
	}
	repo := r.ref.Context()
	auth, err := authn.Resolve(ctx, r.opts.Keychain, repo)
	if err != nil {
		return nil, err
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, auth, transport.NewRetry(r.opts.Transport),
		[]string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	r.client = &http.Client{Transport: t}
	return r.client, nil
}
