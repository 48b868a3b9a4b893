package snapshot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A small snapshot: its memory has a hole, its disk is another layer of the
// same size.
func smallSnapshot(t testing.TB) (dir, id string, names []string) {
	t.Helper()
	dir = memoryDir(t)
	s := openStore(t, dir)
	id = mustCreate(t, s, Draft{
		Label: "small", Parent: newID(), Config: []byte(`{"a":[1,2]}`),
		Needs:  Needs{Vendor: "AuthenticAMD", Features: []FeatureWords{{Leaf: 1, ECX: 3}}},
		Memory: tableOf(t, pages{1, 0, 2}), Disks: []Disk{{"root", tableOf(t, pages{3, 4, 0})}},
		Sections: map[string][]byte{"vcpu/0": []byte("state of the first"), "vcpu/1": []byte("state of the other")},
	}).ID
	names = append(layerFiles(t, dir), filepath.Join(dir, manifestName(id)))
	if len(names) != 3 {
		t.Fatalf("files %v", names)
	}
	for _, name := range names {
		if err := os.Chmod(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, id, names
}

// wantDamage checks that a process which has not seen the store before finds
// out, whatever it asks.
func wantDamage(t testing.TB, what, dir, id string) {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	snap, err := s.Load(ctx, id, nil)
	if err == nil {
		snap.Release()
	}
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Errorf("%s: load says %v", what, err)
	}
	if err := s.Verify(ctx, id, nil); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Errorf("%s: verify says %v", what, err)
	}
}

// M24: every byte of a snapshot, flipped, is noticed.
func TestM24EveryByteCounts(t *testing.T) {
	dir, id, names := smallSnapshot(t)
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		for off := range info.Size() {
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, off); err != nil {
				t.Fatal(err)
			}
			// One bit of each byte, and all of it now and then.
			flipped := []byte{b[0] ^ 1<<(off%8)}
			if off%61 == 0 {
				flipped[0] = ^b[0]
			}
			if _, err := f.WriteAt(flipped, off); err != nil {
				t.Fatal(err)
			}
			wantDamage(t, filepath.Base(name), dir, id)
			if _, err := f.WriteAt(b, off); err != nil {
				t.Fatal(err)
			}
			if t.Failed() {
				t.Fatalf("%s: byte %d", name, off)
			}
		}
	}
	mustLoad(t, openStore(t, dir), id)
}

func TestM24FilesOfAnotherLength(t *testing.T) {
	dir, id, names := smallSnapshot(t)
	for _, name := range names {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, 1, len(whole) / 2, len(whole) - page, len(whole) - 1, len(whole) + 1, len(whole) + page} {
			if size < 0 {
				continue
			}
			if err := os.Truncate(name, int64(size)); err != nil {
				t.Fatal(err)
			}
			wantDamage(t, filepath.Base(name), dir, id)
			if err := os.WriteFile(name, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustLoad(t, openStore(t, dir), id)
}

func TestM24FilesThatAreOthers(t *testing.T) {
	dir, id, names := smallSnapshot(t)
	second := mustCreate(t, openStore(t, dir), Draft{Memory: tableOf(t, pages{7, 0, 2})}).ID
	swap := func(a, b string) {
		t.Helper()
		if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
			t.Fatal(err)
		}
	}
	swap(names[0], names[1])
	wantDamage(t, "layers swapped", dir, id)
	swap(names[0], names[1])
	other := filepath.Join(dir, manifestName(second))
	swap(names[2], other)
	wantDamage(t, "manifests swapped", dir, id)
	wantDamage(t, "manifests swapped", dir, second)
	swap(names[2], other)
	mustLoad(t, openStore(t, dir), id)

	for _, name := range names[:2] {
		aside := filepath.Join(dir, "aside")
		if err := os.Rename(name, aside); err != nil {
			t.Fatal(err)
		}
		wantDamage(t, "no layer", dir, id)
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		wantDamage(t, "a directory", dir, id)
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
		wantDamage(t, "a pipe", dir, id)
		if err := os.Rename(aside, name); err != nil {
			t.Fatal(err)
		}
	}
	mustLoad(t, openStore(t, dir), id)
}

// What was verified is not believed by a process that did not do it, and the
// bytes in use are those that were verified.
func TestDamageAfterVerification(t *testing.T) {
	dir, id, names := smallSnapshot(t)
	s := openStore(t, dir)
	snap := mustLoad(t, s, id)
	// A new file in the place of one that is open.
	whole, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(names[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], bytes.ToUpper(append([]byte("x"), whole[1:]...)), 0o600); err != nil {
		t.Fatal(err)
	}
	wantPages(t, snap.Memory, pages{1, 0, 2})
	wantPages(t, mustLoad(t, s, id).Memory, pages{1, 0, 2})
	if err := s.Verify(ctx, id, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("verify says %v", err)
	}
	wantDamage(t, "replaced", dir, id)
}

// edit changes the body of a manifest and seals it again, as somebody would
// who means harm.
func edit(t testing.TB, raw []byte, from, to string) []byte {
	t.Helper()
	_, body, _ := bytes.Cut(raw, []byte("\n"))
	if !bytes.Contains(body, []byte(from)) {
		t.Fatalf("no %s in %s", from, body)
	}
	return seal(bytes.Replace(body, []byte(from), []byte(to), 1))
}

func TestHostileManifests(t *testing.T) {
	dir, id, names := smallSnapshot(t)
	raw, err := os.ReadFile(names[2])
	if err != nil {
		t.Fatal(err)
	}
	c, err := decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	sum := c.layers[0].Sum.String()
	const memory = `"memory":{"size":12288,"extents":[[0,4096,0,0],[8192,4096,0,8192]]}`
	extents := func(list string) [2]string {
		return [2]string{memory, `"memory":{"size":12288,"extents":` + list + `}`}
	}
	for name, change := range map[string][2]string{
		"a path for a layer":         {sum, "../../../../../../../../../../../../../../../../../etc/passwd../" + "a"},
		"upper case":                 {sum, strings.ToUpper(sum)},
		"a short sum":                {sum, sum[2:]},
		"another id":                 {id, newID()},
		"a path for an id":           {id, "../" + id[3:]},
		"a path for a parent":        {`"parent":"`, `"parent":"../`},
		"a label of control codes":   {`"label":"small"`, `"label":"\u001b[2J"`},
		"unknown field":              {`"label":`, `"labels":`},
		"unknown field in needs":     {`"vendor":`, `"vender":`},
		"unknown field of a layer":   {`"data":8192`, `"date":8192`},
		"two values":                 {`{`, `{}{`},
		"not JSON":                   {`{`, `[`},
		"layer of negative size":     {`"size":12288,"data":8192`, `"size":-4096,"data":8192`},
		"layer of huge size":         {`"size":12288,"data":8192`, `"size":9223372036854775807,"data":8192`},
		"layer larger than its file": {`"size":12288,"data":8192`, `"size":16384,"data":8192`},
		"more data than bytes":       {`"size":12288,"data":8192`, `"size":12288,"data":16384`},
		"other amount of data":       {`"size":12288,"data":8192`, `"size":12288,"data":4096`},
		"memory of no size":          {memory, `"memory":{"size":0,"extents":[]}`},
		"memory of another size":     {memory, `"memory":{"size":16384,"extents":[[0,4096,0,0]]}`},
		"memory with a name":         {memory, `"memory":{"name":"a",` + memory[len(`"memory":{`):]},
		"unaligned extent":           extents(`[[1,4096,0,0]]`),
		"negative start":             extents(`[[-4096,4096,0,0]]`),
		"negative length":            extents(`[[0,-4096,0,0]]`),
		"empty extent":               extents(`[[0,0,0,0]]`),
		"null extent":                extents(`[null]`),
		"extent past the memory":     extents(`[[8192,8192,0,0]]`),
		"extent past the layer":      extents(`[[0,8192,0,8192]]`),
		"length that overflows":      extents(`[[4096,9223372036854771712,0,4096]]`),
		"offset that overflows":      extents(`[[0,4096,0,9223372036854771712]]`),
		"negative offset":            extents(`[[0,4096,0,-4096]]`),
		"overlap":                    extents(`[[0,8192,0,0],[4096,4096,0,0]]`),
		"extents out of order":       extents(`[[8192,4096,0,8192],[0,4096,0,0]]`),
		"no such layer":              extents(`[[0,4096,2,0]]`),
		"negative layer":             extents(`[[0,4096,-1,0]]`),
		"nobody needs a layer":       extents(`[[0,4096,1,0]]`),
		"extents are no list":        extents(`{}`),
		"a number out of range":      extents(`[[0,1e300,0,0]]`),
		"disk of a bad name":         {`"name":"root"`, `"name":"../root"`},
		"section of a bad name":      {`"name":"vcpu/0"`, `"name":"VCPU"`},
		"two sections of a name":     {`"name":"vcpu/0"`, `"name":"vcpu/1"`},
		"year":                       {`"created":"2`, `"created":"0`},
		"state that was changed":     {`"data":"c3Rh`, `"data":"c3Ri`},
		"state is not base64":        {`"data":"c3Rh`, `"data":"!3Rh`},
	} {
		if err := os.WriteFile(names[2], edit(t, raw, change[0], change[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		wantDamage(t, name, dir, id)
	}
}

// A list of many small values is refused before it has become large.
func TestManifestsAreSmallInMemory(t *testing.T) {
	_, _, names := smallSnapshot(t)
	raw, err := os.ReadFile(names[2])
	if err != nil {
		t.Fatal(err)
	}
	const text = 4 << 20
	for what, from := range map[string]string{"extents": `"extents":[`, "layers": `"layers":[`, "sections": `"sections":[`, "disks": `"disks":[`, "features": `"features":[`} {
		for _, element := range []string{"[],", "{},", "null,"} {
			big := edit(t, raw, from, from+strings.Repeat(element, text/len(element)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c, err := decode(big)
			if err == nil {
				_, _, err = decodeSections(c.sections)
			}
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s of %s: %v, want ErrCorrupt", what, element, err)
			}
			// Some copies of the text, and what a list may have: up to 16 times
			// the text. Without limits it would be 70 to 180 times.
			if took := after.TotalAlloc - before.TotalAlloc; took > 32*text {
				t.Errorf("%s of %s: %d MiB allocated", what, element, took>>20)
			}
		}
	}
	if _, err := decode(make([]byte, maxManifest+1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a manifest that is too large: %v", err)
	}
}
