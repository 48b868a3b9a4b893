package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// scenarioIDs are those that docs/scenarios.md has to show a test for.
func scenarioIDs() (ids []string) {
	for i := 1; i <= 31; i++ {
		ids = append(ids, fmt.Sprint("M", i))
	}
	for i := 1; i <= 15; i++ {
		ids = append(ids, fmt.Sprint("P", i))
	}
	for _, i := range []int{1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 21, 22, 24, 27, 28} {
		ids = append(ids, fmt.Sprint("B", i))
	}
	// Of a device that does not exist yet.
	return slices.DeleteFunc(ids, func(id string) bool { return id == "M26" })
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

// TestEveryScenarioHasATest reads the table.
func TestEveryScenarioHasATest(t *testing.T) {
	page, err := os.ReadFile("../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| ([MPB]\d+) \|.*\| (.*) \|$`)
	// A folder may stand before a test that is not in vmm.
	name := regexp.MustCompile("(?:`([a-z/]+)` )?`(Test\\w+)`")
	tests := map[string]map[string]bool{"vmm": testsOf(t, "vmm")}
	shown := make(map[string]int)
	for _, r := range row.FindAllStringSubmatch(string(page), -1) {
		id := r[1]
		if _, twice := shown[id]; twice {
			t.Errorf("%s has two rows", id)
		}
		for _, m := range name.FindAllStringSubmatch(r[2], -1) {
			folder := m[1]
			if folder == "" {
				folder = "vmm"
			}
			if tests[folder] == nil {
				tests[folder] = testsOf(t, folder)
			}
			if !tests[folder][m[2]] {
				t.Errorf("%s: there is no test %s in %s", id, m[2], folder)
			}
			shown[id]++
		}
	}
	for _, id := range scenarioIDs() {
		if shown[id] == 0 {
			t.Errorf("%s has no test", id)
		}
	}
	for n := range tests["vmm"] {
		if strings.HasPrefix(n, "TestScenario") && !strings.Contains(string(page), "`"+n+"`") {
			t.Errorf("%s is not in the table", n)
		}
	}
}
