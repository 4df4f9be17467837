// Prints as many free loopback ports as asked for, one per line. All are held
// until all are known, so that no port is printed twice.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
)

func main() {
	count := 1
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "usage: ports [COUNT]")
			os.Exit(2)
		}
		count = n
	}
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer listener.Close()
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	}
}
