package acpi

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// iasl runs ACPICA's compiler and disassembler, where it is installed. The
// other tests of the tables do without.
func iasl(t *testing.T, dir string, args ...string) string {
	t.Helper()
	bin, err := exec.LookPath("iasl")
	if err != nil {
		const reason = "iasl (package acpica-tools) is not installed"
		if os.Getenv("FORKVM_REQUIRE_TOOLS") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "Compilation") {
		t.Fatalf("iasl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The disassembly names every device and resource as intended, and compiled
// again it gives the very bytes it was made from.
func TestIASLAgreesOnTheDSDT(t *testing.T) {
	dsdt := build(t, 0xe0000, full()).dsdt
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dsdt.dat"), dsdt, 0o600); err != nil {
		t.Fatal(err)
	}
	iasl(t, dir, "-d", "dsdt.dat")
	source, err := os.ReadFile(filepath.Join(dir, "dsdt.dsl"))
	if err != nil {
		t.Fatal(err)
	}
	asl := regexp.MustCompile(`//.*|/\*[^*]*\*/`).ReplaceAllString(string(source), "")
	asl = strings.Join(strings.Fields(asl), " ")
	for _, want := range []string{
		`Name (\_S5, Package (0x04) { 0x05, Zero, Zero, Zero })`,
		`Device (V001) { Name (_HID, "LNRO0005") Name (_UID, One)`,
		`Memory32Fixed (ReadWrite, 0xD0001000, 0x00001000, )`,
		`Interrupt (ResourceConsumer, Edge, ActiveHigh, Exclusive, ,, ) { 0x00000017, }`,
		`Device (COM1) { Name (_HID, EisaId ("PNP0501") )`,
		`IO (Decode16, 0x03F8, 0x03F8, 0x01, 0x08, )`,
		`Name (_HID, EisaId ("PNP0B00") )`,
		`Name (ADDR, Package (0x02) { 0x0009F008, One })`,
		`Method (_EVT, 1, Serialized) { If ((Arg0 == 0x05)) { Notify (\_SB.VGEN, 0x80) } }`,
	} {
		if !strings.Contains(asl, want) {
			t.Errorf("the disassembly lacks %s", want)
		}
	}
	// -f: iasl wants identifiers to end in hexadecimal digits, which that of
	// the generation identifier, chosen by others, does not. -oa: leave names as
	// they are written.
	log := iasl(t, dir, "-f", "-oa", "-p", "again", "dsdt.dsl")
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "Error") && !strings.Contains(line, "_HID suffix must be all hex digits (NCTR)") ||
			strings.HasPrefix(line, "Warning") {
			t.Errorf("iasl: %s", line)
		}
	}
	again, err := os.ReadFile(filepath.Join(dir, "again.aml"))
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if len(again) < headerSize || !bytes.Equal(again[headerSize:], dsdt[headerSize:]) {
		t.Error("compiled again, the DSDT is another one")
	}
}

// Nothing in the data tables strikes iasl as odd.
func TestIASLAgreesOnTheOtherTables(t *testing.T) {
	p := build(t, 0xe0000, full())
	for name, table := range map[string][]byte{"facp": p.fadt, "apic": p.madt} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name+".dat"), table, 0o600); err != nil {
			t.Fatal(err)
		}
		log := iasl(t, dir, "-d", name+".dat")
		source, err := os.ReadFile(filepath.Join(dir, name+".dsl"))
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		for _, bad := range []string{"Invalid", "Incorrect", "Unknown", "Error", "Warning"} {
			if strings.Contains(log+string(source), bad) {
				t.Errorf("%s: iasl says %q\n%s%s", name, bad, log, source)
			}
		}
	}
}
