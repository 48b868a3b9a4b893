package sandbox

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd/rootfs"
	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
	"github.com/forkvm/forkvm/snapshot"
	"github.com/forkvm/forkvm/vmm"
)

// outer is an error of a layer below as one of the api: what it is by its kind,
// with what was being done. Those of the api and of contexts stay as they are.
func outer(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	if passed(err) {
		return err
	}
	return api.Errorf(codeOf(err), "%s: %w", fmt.Sprintf(doing, args...), err)
}

// passed tells whether an error is passed on as it is.
func passed(err error) bool {
	_, ok := errors.AsType[*api.Error](err)
	return ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// templateError is outer for errors of package template, which say what was being
// done.
func templateError(err error) error {
	if err == nil || passed(err) {
		return err
	}
	return api.Errorf(codeOf(err), "%w", err)
}

func codeOf(err error) api.Code {
	for _, k := range []struct {
		is   error
		code api.Code
	}{
		{template.ErrName, api.BadRequest}, {template.ErrNotFound, api.NotFound}, {template.ErrBusy, api.Conflict},
		{template.ErrSyntax, api.BadRequest}, {template.ErrMachine, api.BadRequest}, {template.ErrOutside, api.BadRequest},
		{vmm.ErrConfig, api.BadRequest}, {ext4.ErrSize, api.BadRequest},
		{snapshot.ErrNotFound, api.NotFound}, {snapshot.ErrNoSpace, api.NotEnoughSpace},
		{syscall.ENOSPC, api.NotEnoughSpace}, {syscall.EDQUOT, api.NotEnoughSpace}, {syscall.ENOMEM, api.OutOfCapacity},
		{template.ErrContext, api.BadRequest}, // after what the host may lack
		{rootfs.ErrNoImage, api.BadRequest}, {rootfs.ErrFormat, api.BadRequest}, {rootfs.ErrLimit, api.BadRequest}, {rootfs.ErrDigest, api.BadRequest},
		{snapshot.ErrIncompatible, api.Conflict}, {vmm.ErrClosed, api.Gone},
		{vmm.ErrPowerOff, api.Gone}, {vmm.ErrReset, api.Gone}, {vmm.ErrPanic, api.Gone}, {vmm.ErrCrash, api.Gone},
	} {
		if errors.Is(err, k.is) {
			return k.code
		}
	}
	return api.InternalError
}

// asError is err as an error of the api, whatever it is.
func asError(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return api.Errorf(api.InternalError, "%w", err)
}
