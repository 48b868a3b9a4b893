package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/initrd/bzimage"
)

func newKernel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "Find, fetch and unpack guest kernels",
		Long: `Find, fetch and unpack guest kernels. They are kept in the user's cache directory,
or in $FORKVM_CACHE. $FORKVM_KERNEL names the one to use where no --kernel is given.`,
	}
	cmd.AddCommand(newKernelList(), newKernelFetch(), newKernelPath(), newKernelUnpack())
	return cmd
}

// listedKernel is a line of kernel ls; Used is where no other is named.
type listedKernel struct {
	Name    string `json:"name"` // as --kernel takes it
	Release string `json:"release"`
	Vmlinux string `json:"vmlinux"`
	Source  string `json:"source"`
	Used    bool   `json:"used"`
}

func newKernelList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the kernels at hand; a star marks the one used unless another is named",
		Args:  cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		kernels, err := listKernels(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), kernels)
		}
		return printKernels(cmd.OutOrStdout(), kernels)
	}
	return cmd
}

// listKernels lists the cache, and the kernel in use if it lies elsewhere.
func listKernels(ctx context.Context) ([]listedKernel, error) {
	cached, err := initrd.CachedKernels()
	if err != nil {
		return nil, err
	}
	used, err := initrd.FindKernel(ctx, "")
	if err != nil && !errors.Is(err, initrd.ErrNoKernel) {
		return nil, err
	}
	list, listed := []listedKernel{}, used == nil // a list of none is [] in JSON
	for _, k := range cached {
		isUsed := used != nil && k.Vmlinux == used.Vmlinux
		listed = listed || isUsed
		list = append(list, describe(k, isUsed))
	}
	if !listed {
		list = append(list, describe(used, true))
	}
	return list, nil
}

func describe(k *initrd.Kernel, used bool) listedKernel {
	name := k.Vmlinux
	if cache, err := initrd.CacheDir(); err == nil && strings.HasPrefix(name, cache+"/") {
		name = filepath.Base(filepath.Dir(name))
	}
	return listedKernel{Name: name, Release: k.Release, Vmlinux: k.Vmlinux, Source: k.Source, Used: used}
}

func printKernels(w io.Writer, kernels []listedKernel) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, k := range kernels {
		mark := " "
		if k.Used {
			mark = "*"
		}
		fmt.Fprintf(t, "%s %s\t%s\t%s\n", mark, k.Name, k.Release, k.Source)
	}
	return t.Flush()
}

func newKernelPath() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "path [KERNEL]",
		Short: "Print the path of the vmlinux that is used, unpacking it if need be",
		Args:  cobra.MaximumNArgs(1),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		k, err := initrd.FindKernel(cmd.Context(), strings.Join(args, ""))
		if err != nil {
			return err
		}
		return printKernel(cmd.OutOrStdout(), k, *asJSON)
	}
	return cmd
}

func printKernel(w io.Writer, k *initrd.Kernel, asJSON bool) error {
	if asJSON {
		return printJSON(w, describe(k, true))
	}
	_, err := fmt.Fprintln(w, k.Vmlinux)
	return err
}

func newKernelFetch() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fetch",
		Short: "Download Debian's cloud kernel, check it, and keep it in the cache",
		Args:  cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		k, err := initrd.FetchDebianKernel(cmd.Context())
		if err != nil {
			return err
		}
		return printKernel(cmd.OutOrStdout(), k, *asJSON)
	}
	return cmd
}

func newKernelUnpack() *cobra.Command {
	return &cobra.Command{
		Use:   "unpack BZIMAGE VMLINUX",
		Short: "Unpack a bzImage to the ELF kernel inside; - writes to standard output",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			image, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer image.Close()
			info, err := image.Stat()
			if err != nil {
				return err
			}
			err = writeFile(args[1], 0o644, func(w io.Writer) error {
				_, err := bzimage.Unpack(w, image, info.Size())
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return nil
		},
	}
}
