// Judges histories of concurrent operations with Porcupine, a checker of linearizability that is not ours.
//
// Reads one operation per line of standard input, as JSON, and writes one verdict per key: "ok", "illegal" or "unknown" (not
// decided in time). Each key is a state of its own; the part of its name before the colon says which kind:
//
//	offset       a register: "write" sets it, "read" answers with it
//	topic        exists or not: "create" and "delete", each of which may answer that there was nothing to do
//	transaction  open, committed or aborted: "commit" and "abort" end it, "seen" and "absent" are what readers found
//
// An operation without an end may take effect at any time after it began, or never.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	ok          = "ok"
	nothingToDo = "nothing to do"
	unknown     = "unknown"
	decideMax   = 60 * time.Second
)

type operation struct {
	Key    string `json:"key"`
	Client int    `json:"client"`
	Kind   string `json:"kind"`
	Value  int64  `json:"value"`
	Answer string `json:"answer"`
	Begun  int64  `json:"begun"`
	Ended  *int64 `json:"ended"`
}

const (
	absent    = int64(0)
	present   = int64(1)
	open      = int64(0)
	committed = int64(1)
	aborted   = int64(2)
)

// The value of a register that nobody has written, which is what Kafka answers for a position that was never committed.
const unset = int64(-1)

func stepOffset(state int64, each operation) (bool, int64) {
	if each.Kind == "write" {
		return true, each.Value
	}
	return state == each.Value, state
}

func stepTopic(state int64, each operation) (bool, int64) {
	wanted := present
	if each.Kind == "delete" {
		wanted = absent
	}
	switch each.Answer {
	case ok:
		return state != wanted, wanted
	case nothingToDo:
		return state == wanted, state
	default:
		return true, wanted
	}
}

func stepTransaction(state int64, each operation) (bool, int64) {
	switch each.Kind {
	case "seen":
		return state == committed, state
	case "absent":
		return state != committed, state
	}
	wanted := committed
	if each.Kind == "abort" {
		wanted = aborted
	}
	if state == open {
		return true, wanted
	}
	// A client repeats the end of a transaction until it is answered. What was not answered may have come too late.
	return state == wanted || each.Answer == unknown, state
}

func modelOf(kind string) porcupine.Model {
	steps := map[string]func(int64, operation) (bool, int64){"offset": stepOffset, "topic": stepTopic, "transaction": stepTransaction}
	step, found := steps[kind]
	if !found {
		fail(fmt.Errorf("there is no kind of key %q", kind))
	}
	first := absent
	if kind == "offset" {
		first = unset
	}
	return porcupine.Model{
		Init: func() interface{} { return first },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			return step(state.(int64), input.(operation))
		},
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

func main() {
	histories := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var each operation
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			fail(err)
		}
		ended := int64(math.MaxInt64)
		if each.Ended != nil {
			ended = *each.Ended
		}
		histories[each.Key] = append(histories[each.Key],
			porcupine.Operation{ClientId: each.Client, Input: each, Call: each.Begun, Output: each.Answer, Return: ended})
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
	verdicts := map[string]string{}
	for key, history := range histories {
		kind, _, _ := strings.Cut(key, ":")
		result := porcupine.CheckOperationsTimeout(modelOf(kind), history, decideMax)
		verdicts[key] = strings.ToLower(string(result))
	}
	text, err := json.Marshal(verdicts)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(text))
}
