package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/internal/localtree"
)

func newCopy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy a file or a directory into a sandbox, out of it, or to another",
		Long: `Copy a file, or a directory with all that is in it, into a sandbox, out of it, or from
one sandbox to another or the same. Of FROM and TO one at least is SANDBOX:/PATH, and the
other may be a path of this machine.

As with cp -r, what is copied to a directory that is there is put into it, unless FROM ends
with /., which stands for what is in a directory. TO that ends with / is a directory, which
is made. A link that is named is followed; links in a directory are copied as they are, and
refused if they lead out of it.

As a path of this machine, - is standard input or output: for a file its content, and for a
directory a tar archive. With --tar, what comes from standard input is one, and is unpacked.
A file of this machine whose name has :/ in it is written ./NAME.

` + boxesHelp,
		Example: `  forkvm cp src work:/root
  forkvm cp work:/var/log/build.log -
  forkvm cp work:/root/src other:/root
  tar c src | forkvm cp --tar - work:/root`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeCopy,
	}
	archive := cmd.Flags().Bool("tar", false, "standard input is a tar archive")
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, args []string) error {
		from, to := parsePlace(args[0]), parsePlace(args[1])
		if from.box == "" && to.box == "" {
			return usageError("cp: one of the two is to be SANDBOX:/PATH")
		}
		if *archive && args[0] != stdStream {
			return usageError("cp: --tar is of use with standard input only")
		}
		source, err := openCopier(cmd.Context(), s, from.box)
		if err != nil {
			return err
		}
		target, err := openCopier(cmd.Context(), s, to.box)
		if err != nil {
			return err
		}
		switch {
		case target == nil:
			return source.download(cmd.Context(), from.path, to.path)
		case source != nil:
			return source.copyTo(cmd.Context(), from.path, target, to.path)
		case *archive:
			return target.files.WriteTree(cmd.Context(), target.access, to.path, cmd.InOrStdin())
		case from.path == stdStream:
			_, err = target.files.WriteFile(cmd.Context(), target.access, to.path, cmd.InOrStdin(), api.WriteOptions{})
			return err
		}
		return target.upload(cmd.Context(), from.path, to.path)
	})
}

// place is a path of a sandbox, or of this machine.
type place struct{ box, path string }

// parsePlace: what is before the first :/ is a sandbox, unless it is a path.
func parsePlace(arg string) place {
	box, rest, ok := strings.Cut(arg, ":/")
	if !ok || box == "" || strings.Contains(box, "/") {
		return place{path: arg}
	}
	return place{box, "/" + rest}
}

// completeCopy completes sandboxes before their colon, beside files.
func completeCopy(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	boxes, _ := completeBoxes(allArgs)(cmd, nil, word)
	for i, b := range boxes {
		name, about, _ := strings.Cut(b, "\t")
		boxes[i] = cobra.CompletionWithDesc(name+":/", about)
	}
	return boxes, cobra.ShellCompDirectiveDefault | cobra.ShellCompDirectiveNoSpace
}

// copier copies into a sandbox and out of it.
type copier struct {
	files  api.Files
	access api.Access
}

// openCopier is nil if no sandbox is named.
func openCopier(ctx context.Context, s api.Service, box string) (*copier, error) {
	if box == "" {
		return nil, nil
	}
	b, err := findBox(ctx, s, box)
	if err != nil {
		return nil, err
	}
	return &copier{s, b.Access()}, nil
}

// upload copies a file or directory of this machine.
func (c *copier) upload(ctx context.Context, from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	base, err := baseName(from)
	if err != nil {
		return err
	}
	if to, err = c.target(ctx, from, base, to); err != nil {
		return err
	}
	if info.IsDir() {
		return c.uploadTree(ctx, from, to)
	}
	mode := uint32(info.Mode().Perm())
	_, err = c.files.WriteFile(ctx, c.access, to, f, api.WriteOptions{Mode: &mode})
	return err
}

// baseName is the name of a file also if it is given as .. .
func baseName(name string) (string, error) {
	whole, err := filepath.Abs(name)
	return filepath.Base(whole), err
}

func (c *copier) uploadTree(ctx context.Context, from, to string) error {
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		w.CloseWithError(localtree.Pack(w, from))
	}()
	err := c.files.WriteTree(ctx, c.access, to, r)
	r.CloseWithError(err) // ends the packing, if it was not read to its end
	<-packed
	return err
}

// download copies a file or directory of the sandbox.
func (c *copier) download(ctx context.Context, from, to string) error {
	info, err := c.source(ctx, from)
	if err != nil {
		return err
	}
	if local, err := os.Stat(to); to != stdStream && !isContents(from) && (strings.HasSuffix(to, "/") || err == nil && local.IsDir()) {
		base := path.Base(path.Clean(from))
		if base == "/" {
			return noName(from, to)
		}
		to = filepath.Join(to, base)
	}
	if info.Type == api.Directory {
		return c.downloadTree(ctx, info.Path, to)
	}
	r, info, err := c.files.ReadFile(ctx, c.access, info.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == stdStream {
		_, err = io.Copy(os.Stdout, r)
		return err
	}
	return writeFile(to, os.FileMode(info.Mode).Perm(), func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
}

func (c *copier) downloadTree(ctx context.Context, from, to string) error {
	r, err := c.files.ReadTree(ctx, c.access, from)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == stdStream {
		return writeFile(to, 0, func(w io.Writer) error {
			_, err := io.Copy(w, r)
			return err
		})
	}
	if err := localtree.Unpack(to, r, localtree.Limits{}); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}
