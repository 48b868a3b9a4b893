package test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// scenarioPart is a part of docs/scenarios.md: its tables of scenarios up to the
// next part, whose tests are in a folder unless the table says otherwise.
type scenarioPart struct {
	from   string // its first heading
	folder string
	ids    []string // that have to have a test
}

func scenarioParts() []scenarioPart {
	var machine, service []string
	for i := 1; i <= 31; i++ {
		if i != 26 { // of a device that does not exist yet
			machine = append(machine, fmt.Sprint("M", i))
		}
	}
	for i := 1; i <= 15; i++ {
		machine = append(machine, fmt.Sprint("P", i))
	}
	for _, i := range []int{1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 21, 22, 24, 27, 28} {
		machine = append(machine, fmt.Sprint("B", i))
	}
	for _, i := range []int{6, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31} {
		service = append(service, fmt.Sprint("B", i))
	}
	return []scenarioPart{{"## A machine\n", "vmm", machine}, {"## A service\n", "api/sandbox", service}}
}

// testsOf are the names of the tests in a folder of the module.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("tests of %s: %d files, %v", folder, len(paths), err)
	}
	names := make(map[string]bool)
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(src, -1) {
			names[string(m[1])] = true
		}
	}
	return names
}

var (
	scenarioRow = regexp.MustCompile(`(?m)^\| ([MPB]\d+) \|.*\| (.*) \|$`)
	// A folder may stand before a test that is not in that of the part.
	scenarioTest = regexp.MustCompile("(?:`([a-z/]+)` )?`(Test\\w+)`")
)

// TestEveryScenarioHasATest reads the tables.
func TestEveryScenarioHasATest(t *testing.T) {
	page, err := os.ReadFile("../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]map[string]bool)
	rest := string(page)
	parts := scenarioParts()
	for k, part := range parts {
		_, text, found := strings.Cut(rest, part.from)
		if !found {
			t.Fatalf("there is no %q", part.from)
		}
		if rest = text; k+1 < len(parts) {
			text, _, _ = strings.Cut(text, parts[k+1].from)
		}
		shown := make(map[string]int)
		for _, r := range scenarioRow.FindAllStringSubmatch(text, -1) {
			if _, twice := shown[r[1]]; twice {
				t.Errorf("%s has two rows", r[1])
			}
			shown[r[1]] = 0
			for _, m := range scenarioTest.FindAllStringSubmatch(r[2], -1) {
				folder := cmp.Or(m[1], part.folder)
				if tests[folder] == nil {
					tests[folder] = testsOf(t, folder)
				}
				if !tests[folder][m[2]] {
					t.Errorf("%s: there is no test %s in %s", r[1], m[2], folder)
				}
				shown[r[1]]++
			}
		}
		for _, id := range part.ids {
			if shown[id] == 0 {
				t.Errorf("%s: %s has no test", strings.TrimSpace(part.from), id)
			}
		}
		for n := range tests[part.folder] {
			if strings.HasPrefix(n, "TestScenario") && !strings.Contains(text, "`"+n+"`") {
				t.Errorf("%s is not in the table", n)
			}
		}
	}
}

// TestKnownLimitsAreListed: scenario B31, what a fork cannot hide is said.
func TestKnownLimitsAreListed(t *testing.T) {
	page, err := os.ReadFile("../docs/fork-correctness.md")
	if err != nil {
		t.Fatal(err)
	}
	_, limits, _ := strings.Cut(string(page), "\n## Known limits\n")
	for _, of := range []string{
		"PAWS", "kvmclock", "conntrack", "tap", "ext4", "cgroup", "Nobody inside is told", "machine-id", "SSH host keys",
	} {
		if !strings.Contains(limits, of) {
			t.Errorf("nothing is said of %s", of)
		}
	}
}
