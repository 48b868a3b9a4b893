// Package template answers how a machine comes to be that others are forked
// from: it builds templates, which are named snapshots taken after set-up.
//
// What is to be set up is written in a file that is a subset of a Containerfile
// (Parse). Store.Build runs it in a machine and stores a snapshot of each step,
// so that what has not changed is not run again. Store.Image hands out a
// template as an image to start machines from: no machine made from a template
// boots, it is a fork of the one that was set up.
package template
