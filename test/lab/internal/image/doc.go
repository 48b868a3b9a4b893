// Package image makes what a lab's machine boots from: kernel, initramfs and disk images.
package image
