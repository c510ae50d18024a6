// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"wangell.loutres.me/internal/runtime"
)

// errorTrailer is the trailer with an error after the beginning of an answer.
const errorTrailer = "Wangell-Error"

// answer writes a value as JSON, or nothing, or an error.
func answer(w http.ResponseWriter, v any, err error) {
	switch {
	case err != nil:
		Refuse(w, err)
	case v == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // it fails only if the client is gone
	}
}

// errorBody is the JSON form of an error.
type errorBody struct {
	Error string `json:"error"`
}

// Refuse answers with an error: an *Error with its code, otherwise 404 for runtime.ErrNotFound, and 500.
func Refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var coded *Error
	switch {
	case errors.As(err, &coded):
		code = coded.Code
	case errors.Is(err, runtime.ErrNotFound):
		code = http.StatusNotFound
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(errorBody{err.Error()})
}

func badRequest(format string, args ...any) error {
	return &Error{Code: http.StatusBadRequest, Text: fmt.Sprintf(format, args...)}
}
