package cli

import (
	"encoding/json"
	"reflect"
)

// withEmptyLists returns value with every list and map that is nil made empty, however deep: a script that goes over one must not meet
// null because there happens to be nothing in it.
func withEmptyLists(value any) any {
	if value == nil {
		return nil
	}
	found := reflect.New(reflect.TypeOf(value)).Elem()
	found.Set(reflect.ValueOf(value))
	fillLists(found)
	return found.Interface()
}

// fillLists changes v, which can be set.
func fillLists(v reflect.Value) {
	switch v.Kind() { //nolint:exhaustive // what holds nothing needs nothing
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() { // no list, and no JSON when it is empty
			return
		}
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			fillLists(v.Index(i))
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				fillLists(field)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			fillLists(v.Elem())
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, filled(v.MapIndex(key)))
		}
	case reflect.Interface:
		if !v.IsNil() {
			v.Set(filled(v.Elem()))
		}
	default:
	}
}

// filled is a changed copy of v, which cannot be set.
func filled(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	fillLists(c)
	return c
}
