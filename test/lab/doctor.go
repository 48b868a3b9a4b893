package main

import (
	"context"
	"fmt"

	"github.com/forkvm/forkvm/test/lab/internal/image"
)

// doctorCommand says what the lab needs of this host, and what to do about what is missing.
func doctorCommand(ctx context.Context, args []string) (int, error) {
	if err := newFlags("doctor", "").Parse(args); err != nil {
		return 0, err
	}
	here, err := direct()
	if err != nil {
		return 0, err
	}
	if here {
		fmt.Println("PASS: this host has a hardware KVM, which is used: nothing else is needed")
		return 0, nil
	}
	fmt.Println("PASS: this host has no usable hardware KVM: a machine is emulated")
	code := 0
	for _, check := range image.Checks(ctx) {
		if check.Err != nil {
			fmt.Printf("FAIL: %s: %v\n", check.Name, check.Err)
			code = exitNo
			continue
		}
		fmt.Printf("PASS: %s: %s\n", check.Name, check.Found)
	}
	return code, nil
}
