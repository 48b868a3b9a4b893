package applet

import (
	"compress/gzip"
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func baseName(s *stdio, args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return errUsage
	}
	name := filepath.Base(args[0])
	if len(args) == 2 && name != args[1] {
		name = strings.TrimSuffix(name, args[1])
	}
	_, err := fmt.Fprintln(s.out, name)
	return err
}

func dirName(s *stdio, args []string) error {
	for _, a := range args {
		fmt.Fprintln(s.out, filepath.Dir(strings.TrimRight(a, "/")+map[bool]string{true: "/"}[strings.Trim(a, "/") == "" && a != ""]))
	}
	return nil
}

func ln(_ *stdio, args []string) error {
	o, err := parse(args, "sfn")
	if err != nil {
		return err
	}
	if len(o.args) == 1 {
		o.args = append(o.args, filepath.Base(o.args[0]))
	}
	if len(o.args) != 2 {
		return errUsage
	}
	target, name := o.args[0], o.args[1]
	if st, err := os.Stat(name); err == nil && st.IsDir() && !o.has('n') {
		name = filepath.Join(name, filepath.Base(target))
	}
	if o.has('f') {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if o.has('s') {
		return os.Symlink(target, name)
	}
	return os.Link(target, name)
}

func readlink(s *stdio, args []string) error {
	o, err := parse(args, "fn")
	if err != nil {
		return err
	}
	if o.has('f') {
		return realpath(s, o.args)
	}
	for _, a := range o.args {
		target, err := os.Readlink(a)
		if err != nil {
			return exitCode(1)
		}
		fmt.Fprintln(s.out, target)
	}
	return nil
}

func realpath(s *stdio, args []string) error {
	for _, a := range args {
		p, err := filepath.Abs(a)
		if err == nil {
			p, err = filepath.EvalSymlinks(p)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(s.out, p)
	}
	return nil
}

func rmdir(_ *stdio, args []string) error {
	for _, a := range args {
		if err := unix.Rmdir(a); err != nil {
			return &fs.PathError{Op: "rmdir", Path: a, Err: err}
		}
	}
	return nil
}

func chown(_ *stdio, args []string) error {
	o, err := parse(args, "Rh")
	if err != nil {
		return err
	}
	if len(o.args) < 2 {
		return errUsage
	}
	user, group, _ := strings.Cut(o.args[0], ":")
	ids := [2]int{-1, -1}
	for i, name := range []string{user, group} {
		if name == "" {
			continue
		}
		if ids[i], err = lookupID([]string{"/etc/passwd", "/etc/group"}[i], name); err != nil {
			return err
		}
	}
	for _, root := range o.args[1:] {
		if !o.has('R') {
			if err := os.Chown(root, ids[0], ids[1]); err != nil {
				return err
			}
			continue
		}
		err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, ids[0], ids[1]))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func dd(s *stdio, args []string) error {
	var src, dst string
	bs, count, skip, seek := int64(512), int64(-1), int64(0), int64(0)
	numbers := map[string]*int64{"bs": &bs, "count": &count, "skip": &skip, "seek": &seek}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	for _, a := range args {
		key, value, ok := strings.Cut(a, "=")
		switch {
		case ok && key == "if":
			src = value
		case ok && key == "of":
			dst = value
		case a == "conv=notrunc":
			flags &^= os.O_TRUNC
		case a == "oflag=direct" || a == "iflag=direct" || a == "conv=fsync":
			return fmt.Errorf("%w: %s", errors.ErrUnsupported, a)
		case ok && numbers[key] != nil:
			n, err := byteSize(value)
			if err != nil {
				return err
			}
			*numbers[key] = n
		case key != "status":
			return fmt.Errorf("unknown operand %q", a)
		}
	}
	if bs < 1 || bs > 1<<30 {
		return fmt.Errorf("block size %d", bs)
	}
	in, out := s.in, io.Writer(s.out)
	if src != "" {
		f, err := os.Open(src)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	if dst != "" {
		if seek > 0 {
			flags &^= os.O_TRUNC
		}
		f, err := os.OpenFile(dst, flags, 0o666)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Seek(seek*bs, io.SeekStart); seek > 0 && err != nil {
			return err
		}
		out = f
	}
	return copyBlocks(s, in, out, bs, count, skip)
}

func copyBlocks(s *stdio, in io.Reader, out io.Writer, bs, count, skip int64) error {
	if skip > 0 {
		if sk, ok := in.(io.Seeker); !ok || func() error { _, err := sk.Seek(skip*bs, io.SeekStart); return err }() != nil {
			if _, err := io.CopyN(io.Discard, in, skip*bs); err != nil && err != io.EOF {
				return err
			}
		}
	}
	buf := make([]byte, bs)
	var full, part, total int64
	for count < 0 || full+part < count {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := out.Write(buf[:n]); err != nil {
				return err
			}
			total += int64(n)
			if int64(n) == bs {
				full++
			} else {
				part++
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(s.err, "%d+%d records\n%d bytes copied\n", full, part, total)
	return nil
}

// byteSize parses a number with an optional suffix: 512, 4k, 1M, 1G.
func byteSize(v string) (int64, error) {
	shift := 0
	for suffix, n := range map[string]int{"k": 10, "K": 10, "M": 20, "G": 30} {
		if rest, ok := strings.CutSuffix(v, suffix); ok {
			v, shift = rest, n
			break
		}
	}
	n, err := strconv.ParseInt(v, 10, 63-shift)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("bad number %q", v)
	}
	return n << shift, nil
}

func df(s *stdio, args []string) error {
	o, err := parse(args, "hkT")
	if err != nil {
		return err
	}
	if len(o.args) == 0 {
		b, err := os.ReadFile("/proc/mounts")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 {
				o.args = append(o.args, f[1])
			}
		}
	}
	fmt.Fprintf(s.out, "%-24s %12s %12s %12s\n", "Mounted on", "1K-blocks", "Used", "Available")
	for _, p := range o.args {
		var st unix.Statfs_t
		if err := unix.Statfs(p, &st); err != nil {
			return &fs.PathError{Op: "statfs", Path: p, Err: err}
		}
		k := uint64(st.Bsize) //nolint:gosec // block sizes are positive
		if st.Blocks > 0 {
			fmt.Fprintf(s.out, "%-24s %12d %12d %12d\n", p, st.Blocks*k>>10, (st.Blocks-st.Bfree)*k>>10, st.Bavail*k>>10)
		}
	}
	return nil
}

func du(s *stdio, args []string) error {
	o, err := parse(args, "shk")
	if err != nil {
		return err
	}
	if len(o.args) == 0 {
		o.args = []string{"."}
	}
	for _, root := range o.args {
		var blocks int64
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			if st, ok := fi.Sys().(*syscall.Stat_t); ok {
				blocks += st.Blocks
			}
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%d\t%s\n", blocks/2, root)
	}
	return nil
}

func mount(s *stdio, args []string) error {
	o, err := parse(args, "t:o:")
	if err != nil {
		return err
	}
	if len(o.args) == 0 {
		b, err := os.ReadFile("/proc/mounts")
		s.out.Write(b)
		return err
	}
	if len(o.args) != 2 {
		return errUsage
	}
	var flags uintptr
	var data []string
	for opt := range strings.SplitSeq(o.set['o'], ",") {
		switch opt {
		case "", "rw", "defaults":
		case "ro":
			flags |= unix.MS_RDONLY
		case "bind":
			flags |= unix.MS_BIND
		case "remount":
			flags |= unix.MS_REMOUNT
		case "noatime":
			flags |= unix.MS_NOATIME
		case "nosuid":
			flags |= unix.MS_NOSUID
		case "nodev":
			flags |= unix.MS_NODEV
		case "noexec":
			flags |= unix.MS_NOEXEC
		default:
			data = append(data, opt)
		}
	}
	if err := unix.Mount(o.args[0], o.args[1], o.set['t'], flags, strings.Join(data, ",")); err != nil {
		return &fs.PathError{Op: "mount", Path: o.args[1], Err: err}
	}
	return nil
}

func umount(_ *stdio, args []string) error {
	o, err := parse(args, "lf")
	if err != nil {
		return err
	}
	flags := 0
	if o.has('l') {
		flags |= unix.MNT_DETACH
	}
	if o.has('f') {
		flags |= unix.MNT_FORCE
	}
	for _, p := range o.args {
		if err := unix.Unmount(p, flags); err != nil {
			return &fs.PathError{Op: "umount", Path: p, Err: err}
		}
	}
	return nil
}

func syncCmd(*stdio, []string) error {
	unix.Sync()
	return nil
}

func md5sum(s *stdio, args []string) error    { return sums(s, args, md5.New) }
func sha256sum(s *stdio, args []string) error { return sums(s, args, sha256.New) }

func sums(s *stdio, args []string, hasher func() hash.Hash) error {
	return eachInput(s, args, func(name string, r io.Reader) error {
		h := hasher()
		if _, err := io.Copy(h, r); err != nil {
			return err
		}
		_, err := fmt.Fprintf(s.out, "%x  %s\n", h.Sum(nil), name)
		return err
	})
}

func gunzip(s *stdio, args []string) error { return gzipCmd(s, append([]string{"-d"}, args...)) }
func zcat(s *stdio, args []string) error   { return gzipCmd(s, append([]string{"-dc"}, args...)) }

func gzipCmd(s *stdio, args []string) error {
	o, err := parse(args, "dckf123456789")
	if err != nil {
		return err
	}
	level := gzip.DefaultCompression
	for f := range o.set {
		if f >= '1' && f <= '9' {
			level = int(f - '0')
		}
	}
	if len(o.args) == 0 {
		return gzipStream(s.out, s.in, level, o.has('d'))
	}
	for _, name := range o.args {
		if err := gzipFile(s, o, name, level); err != nil {
			return err
		}
	}
	return nil
}

func gzipStream(w io.Writer, r io.Reader, level int, decompress bool) error {
	if decompress {
		zr, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, zr)
		return err
	}
	zw, err := gzip.NewWriterLevel(w, level)
	if err != nil {
		return err
	}
	if _, err := io.Copy(zw, r); err != nil {
		return err
	}
	return zw.Close()
}

func gzipFile(s *stdio, o *options, name string, level int) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	if o.has('c') {
		return gzipStream(s.out, in, level, o.has('d'))
	}
	to := name + ".gz"
	if o.has('d') {
		var ok bool
		if to, ok = strings.CutSuffix(name, ".gz"); !ok {
			return fmt.Errorf("%s: not named .gz", name)
		}
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if o.has('f') {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	out, err := os.OpenFile(to, flags, 0o666)
	if err != nil {
		return err
	}
	if err := errors.Join(gzipStream(out, in, level, o.has('d')), out.Close()); err != nil {
		_ = os.Remove(to)
		return err
	}
	if o.has('k') {
		return nil
	}
	return os.Remove(name)
}
