/* Reads wanted scalars of JSON objects, and of objects in these, straight into Arrow buffers.
 *
 * The scanner reads a value only if it is sure to read what Python's and Arrow's parsers read from it;
 * it leaves every other value to them, whole. It leaves values that are no object or not valid JSON in
 * UTF-8, a wanted field that comes twice, has escapes or is of another type than its column, an array
 * or scalar where a wanted field would be inside, names with escapes, and numbers that it cannot read
 * exactly. It neither allocates nor keeps anything.
 */
#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0 || !defined(__SIZEOF_INT128__) || \
    __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the scanner needs exact doubles, 128-bit integers and a little-endian machine"
#endif

typedef unsigned __int128 wide;

/* What a field takes. ANY becomes TEXT, INTEGER or DOUBLE by its first value that is not null, and may
 * still turn from INTEGER to DOUBLE; TIME becomes TEXT or INTEGER. OBJECT has no column: it leads to
 * wanted fields. */
enum { TEXT, BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, ANY, TIME, OBJECT };

/* A wanted field, whose column the caller has room for: `valid` has a zeroed bit a row, `values` a
 * zeroed bit or the bytes of a number a row, or all bytes of the values for TEXT; `starts`, of
 * TEXT, ANY and TIME, rows + 1. */
typedef struct {
  const uint8_t *name;
  int64_t name_size;
  int32_t kind;
  int32_t is_raw; /* as a double it is left where doubles do not tell whole numbers apart */
  int64_t least;  /* of INTEGER, ANY and TIME */
  int64_t most;   /* as well */
  uint64_t bound[2]; /* of DECIMAL: what an unscaled number stays below, low half first */
  uint64_t tenth[2]; /* of that */
  int32_t scale;  /* of DECIMAL */
  int32_t width;  /* of INTEGER, ANY and TIME: bytes of a number */
  int32_t may_widen; /* of ANY: it may become DOUBLE */
  int32_t parent; /* index of the OBJECT that it is in; -1: of none */
  uint8_t *valid;
  uint8_t *values;
  int32_t *starts;
  int64_t used; /* bytes of TEXT so far */
  int64_t nulls;
} field;

enum { MOST_FIELDS = 64, REMEMBERED = 64, MOST_DIGITS = 19, MOST_FIVES = 27 };
enum { DEEPEST = 60, TRIED = 64 };

/* The name that the value before had in this place: most values have the same names in order. */
typedef struct {
  const uint8_t *at;
  int64_t size;
  int parent;
  int wanted; /* index of the field, or -1 */
  int beyond_ascii;
} member;

/* A number: whole digits times ten to the power of `exponent`. */
typedef struct {
  uint64_t digits;
  int exponent;
  int is_negative;
  int is_whole; /* has neither a fraction nor an exponent */
} number;

typedef struct {
  field *fields;
  int count;
  int64_t row;
  int place; /* how many names the value has had, without those of objects that nobody wants */
  uint64_t seen; /* a bit for each field */
  uint64_t bytes; /* all bytes of texts and names, ORed */
  member members[REMEMBERED];
} scan;

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define HIGH_BITS UINT64_C(0x8080808080808080)

static inline int is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }

static inline const uint8_t *skip_blanks(const uint8_t *at, const uint8_t *end) {
  while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
  return at;
}

/* The quote that ends a text which begins at `at`; NULL before an escape, a control character or
 * the end. */
static inline const uint8_t *find_quote(scan *s, const uint8_t *at, const uint8_t *end) {
  while (end - at >= 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    uint64_t quote = word ^ (EACH_BYTE * '"'), slash = word ^ (EACH_BYTE * '\\');
    /* The lowest bit that is set is right; a borrow may set higher ones. */
    uint64_t found = (((quote - EACH_BYTE) & ~quote) | ((slash - EACH_BYTE) & ~slash) |
                      ((word - EACH_BYTE * 0x20) & ~word)) & HIGH_BITS;
    if (found) {
      int before = __builtin_ctzll(found) / 8;
      if (before) s->bytes |= word << (64 - 8 * before);
      at += before;
      return *at == '"' ? at : NULL;
    }
    s->bytes |= word;
    at += 8;
  }
  for (; at < end && *at != '"'; at++) {
    if (*at == '\\' || *at < 0x20) return NULL;
    s->bytes |= *at;
  }
  return at < end ? at : NULL;
}

static int is_utf8(const uint8_t *at, const uint8_t *end) {
  while (at < end) {
    uint8_t first = *at++;
    if (first < 0x80) continue;
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || end - at < more) return 0;
    if (first == 0xE0 && at[0] < 0xA0) return 0; /* overlong */
    if (first == 0xED && at[0] > 0x9F) return 0; /* half a surrogate pair */
    if (first == 0xF0 && at[0] < 0x90) return 0; /* overlong */
    if (first == 0xF4 && at[0] > 0x8F) return 0; /* beyond Unicode */
    for (; more; more--)
      if ((*at++ & 0xC0) != 0x80) return 0;
  }
  return 1;
}

/* -- numbers ------------------------------------------------------------------------------- */

static inline const uint8_t *read_digits(const uint8_t *at, const uint8_t *end, uint64_t *to) {
  while (at < end && is_digit(*at)) *to = *to * 10 + (uint64_t)(*at++ - '0');
  return at;
}

/* Read a number; NULL where there is none, or one of too many digits. */
static inline const uint8_t *read_number(const uint8_t *at, const uint8_t *end, number *to) {
  to->digits = 0;
  to->exponent = 0;
  to->is_whole = 1;
  to->is_negative = at < end && *at == '-';
  at += to->is_negative;
  const uint8_t *first = at;
  at = read_digits(at, end, &to->digits);
  int64_t count = at - first;
  if (count == 0 || (count > 1 && *first == '0')) return NULL;
  count -= *first == '0';
  if (at < end && *at == '.') {
    const uint8_t *point = at++;
    at = read_digits(at, end, &to->digits);
    int64_t places = at - point - 1;
    if (places == 0 || places > MOST_DIGITS) return NULL;
    count += places;
    to->exponent = -(int)places;
    to->is_whole = 0;
  }
  if (count > MOST_DIGITS) return NULL;
  if (at < end && (*at == 'e' || *at == 'E')) {
    uint64_t power = 0;
    int is_negative = ++at < end && *at == '-';
    at += is_negative || (at < end && *at == '+');
    first = at;
    at = read_digits(at, end, &power);
    if (at == first || at - first > 3) return NULL;
    to->exponent += is_negative ? -(int)power : (int)power;
    to->is_whole = 0;
  }
  return at;
}

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static int bits_of(wide it) {
  uint64_t high = (uint64_t)(it >> 64), low = (uint64_t)it;
  return high ? 128 - __builtin_clzll(high) : low ? 64 - __builtin_clzll(low) : 0;
}

/* 2^n for an n whose power is a normal double. */
static double power_of_two(int n) {
  uint64_t bits = (uint64_t)(n + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

/* The number rounded once, half to even, to `bits` of a floating-point number; 0: not within reach. */
static int round_number(const number *from, int bits, double *to) {
  int power = from->exponent, is_inexact = 0, shift = 0;
  double rounded = 0;
  if (from->digits && (power < -MOST_FIVES || power > MOST_FIVES)) return 0;
  if (from->digits && bits == 53 && from->digits <= UINT64_C(1) << 53 && power >= -22 && power <= 22) {
    rounded = (double)from->digits;
    rounded = power < 0 ? rounded / TENS[-power] : rounded * TENS[power];
  } else if (from->digits) {
    /* 10^n is 5^n shifted by n; 5^27 has 63 bits. */
    uint64_t fives = 1;
    for (int n = power < 0 ? -power : power; n; n--) fives *= 5;
    wide whole = from->digits;
    if (power >= 0) {
      whole *= fives;
    } else {
      shift = 128 - bits_of(whole);
      whole <<= shift;
      is_inexact = whole % fives != 0;
      whole /= fives;
    }
    int dropped = bits_of(whole) - bits;
    if (dropped > 0) {
      wide rest = whole & (((wide)1 << dropped) - 1), half = (wide)1 << (dropped - 1);
      whole >>= dropped;
      if (rest > half || (rest == half && (is_inexact || (whole & 1)))) whole++;
    } else {
      dropped = 0; /* only an exact product is that short */
    }
    rounded = (double)(uint64_t)whole; /* exact */
    rounded *= power_of_two(power + dropped - shift);
    if (bits == 24 && rounded > FLT_MAX) return 0;
  }
  *to = from->is_negative ? -rounded : rounded;
  return 1;
}

/* The number as a decimal without its point; 0: it needs other digits than it has, or too many. */
static int unscale(const field *to, const number *from, wide *unscaled) {
  int zeros = from->exponent + to->scale;
  wide digits = from->digits, tenth = (wide)to->tenth[1] << 64 | to->tenth[0];
  if (digits && zeros < 0) return 0;
  for (; digits && zeros; zeros--) {
    if (digits >= tenth) return 0;
    digits *= 10;
  }
  if (digits >= ((wide)to->bound[1] << 64 | to->bound[0])) return 0;
  *unscaled = from->is_negative ? -digits : digits;
  return 1;
}

/* -- values of wanted fields --------------------------------------------------------------- */

static inline void set_bit(uint8_t *bits, int64_t row) {
  bits[row / 8] |= (uint8_t)(1u << (unsigned)(row % 8));
}

/* Make whole numbers doubles, once, unless one of them would lose digits. */
static void widen(field *it, int64_t rows) {
  const int64_t bound = INT64_C(1) << 53;
  int64_t whole;
  it->may_widen = 0;
  for (int64_t row = 0; row < rows; row++) {
    memcpy(&whole, it->values + row * 8, sizeof whole);
    if (whole <= -bound || whole >= bound) return;
  }
  for (int64_t row = 0; row < rows; row++) {
    memcpy(&whole, it->values + row * 8, sizeof whole);
    double wide_one = (double)whole;
    memcpy(it->values + row * 8, &wide_one, sizeof wide_one);
  }
  it->kind = DOUBLE;
}

static inline int take_number(field *to, int64_t row, const number *from) {
  if (to->kind == ANY) to->kind = from->is_whole ? INTEGER : DOUBLE;
  if (to->kind == TIME) to->kind = INTEGER;
  if (to->may_widen && to->kind == INTEGER && !from->is_whole) widen(to, row);
  if (to->kind == INTEGER) {
    uint64_t bound = from->is_negative ? -(uint64_t)to->least : (uint64_t)to->most;
    if (!from->is_whole || from->digits > bound) return 0;
    uint64_t value = from->is_negative ? -from->digits : from->digits;
    memcpy(to->values + row * to->width, &value, (size_t)to->width);
  } else if (to->kind == DOUBLE) {
    double value;
    if (!round_number(from, 53, &value)) return 0;
    if (to->is_raw && !(value < 0x1p53 && value > -0x1p53)) return 0;
    memcpy(to->values + row * 8, &value, sizeof value);
  } else if (to->kind == FLOAT) {
    double value;
    if (!round_number(from, 24, &value)) return 0;
    float narrow = (float)value;
    memcpy(to->values + row * 4, &narrow, sizeof narrow);
  } else if (to->kind == DECIMAL) {
    wide unscaled;
    if (!unscale(to, from, &unscaled)) return 0;
    memcpy(to->values + row * 16, &unscaled, sizeof unscaled);
  } else {
    return 0;
  }
  set_bit(to->valid, row);
  return 1;
}

static inline int take_text(field *to, int64_t row, const uint8_t *at, const uint8_t *end) {
  if (to->kind == ANY || to->kind == TIME) to->kind = TEXT;
  if (to->kind == DECIMAL) {
    number it;
    return read_number(at, end, &it) == end && take_number(to, row, &it);
  }
  if (to->kind != TEXT) return 0;
  memcpy(to->values + to->used, at, (size_t)(end - at));
  to->used += end - at;
  set_bit(to->valid, row);
  return 1;
}

static inline int take_boolean(field *to, int64_t row, int is_true) {
  if (to->kind != BOOLEAN) return 0;
  if (is_true) set_bit(to->values, row);
  set_bit(to->valid, row);
  return 1;
}

/* -- one value ----------------------------------------------------------------------------- */

static int find_field(const scan *s, int parent, const uint8_t *name, int64_t size) {
  for (int n = 0; n < s->count; n++) {
    const field *it = &s->fields[n];
    if (it->parent == parent && it->name_size == size && !memcmp(it->name, name, (size_t)size))
      return n;
  }
  return -1;
}

/* Read the next name, behind its quote; return the place behind the closing one, or NULL. */
static inline const uint8_t *read_name(scan *s, int parent, const uint8_t *at, const uint8_t *end,
                                       int *wanted) {
  member *known = s->place < REMEMBERED ? &s->members[s->place++] : NULL;
  if (known && known->at && known->parent == parent && end - at > known->size &&
      at[known->size] == '"' && !memcmp(at, known->at, (size_t)known->size)) {
    s->bytes |= (uint64_t)known->beyond_ascii;
    *wanted = known->wanted;
    return at + known->size + 1;
  }
  const uint8_t *quote = find_quote(s, at, end);
  if (!quote) return NULL;
  *wanted = find_field(s, parent, at, quote - at);
  if (known) *known = (member){at, quote - at, parent, *wanted, s->bytes & HIGH_BITS ? 0x80 : 0};
  return quote + 1;
}

static inline int is_word(const uint8_t *at, const uint8_t *end, const char *word, int size) {
  return end - at >= size && !memcmp(at, word, (size_t)size);
}

static int is_hex(const uint8_t *at) {
  for (int n = 0; n < 4; n++)
    if (!is_digit(at[n]) && (uint8_t)((at[n] | 0x20) - 'a') > 5) return 0;
  return 1;
}

/* The place behind the text at `at`, which may have escapes; NULL if it is none. */
static const uint8_t *skip_text(scan *s, const uint8_t *at, const uint8_t *end) {
  for (; at < end && *at != '"'; at++) {
    if (*at < 0x20) return NULL;
    s->bytes |= *at;
    if (*at != '\\') continue;
    if (++at == end) return NULL;
    if (*at == 'u') {
      if (end - at < 5 || !is_hex(at + 1)) return NULL;
      at += 4;
    } else if (*at == 0 || !strchr("\"\\/bfnrt", *at)) {
      return NULL;
    }
  }
  return at < end ? at + 1 : NULL;
}

/* Read a scalar into its field, which is NULL if nobody wants it; return its end, or NULL. */
static inline const uint8_t *read_scalar(scan *s, field *to, const uint8_t *at,
                                         const uint8_t *end) {
  if (at == end) return NULL;
  if (*at == '"') {
    const uint8_t *quote = find_quote(s, ++at, end);
    if (!quote) return to ? NULL : skip_text(s, at, end);
    return !to || take_text(to, s->row, at, quote) ? quote + 1 : NULL;
  }
  if (*at == '-' || is_digit(*at)) {
    number it;
    at = read_number(at, end, &it);
    return at && (!to || take_number(to, s->row, &it)) ? at : NULL;
  }
  if (is_word(at, end, "null", 4)) return at + 4;
  int is_true = is_word(at, end, "true", 4);
  if (!is_true && !is_word(at, end, "false", 5)) return NULL;
  return !to || take_boolean(to, s->row, is_true) ? at + 5 - is_true : NULL;
}

/* The place behind the object or array at `at`, which nobody wants; NULL if it is none. */
static const uint8_t *skip_nested(scan *s, const uint8_t *at, const uint8_t *end) {
  uint64_t objects = 0; /* a bit a level, the innermost last: 1 is an object */
  int depth = 0, is_value = 1;
  while (is_value || depth) {
    if (at == end) return NULL;
    if (is_value && (*at == '{' || *at == '[')) {
      if (++depth > DEEPEST) return NULL;
      objects = objects << 1 | (*at == '{');
      at = skip_blanks(at + 1, end);
      is_value = at == end || *at != (objects & 1 ? '}' : ']');
    } else if (is_value) {
      if (!(at = read_scalar(s, NULL, at, end))) return NULL;
      at = skip_blanks(at, end);
      is_value = 0;
      continue;
    } else if (*at == ',') {
      at = skip_blanks(at + 1, end);
      is_value = 1;
    } else if (*at != (objects & 1 ? '}' : ']')) {
      return NULL;
    }
    if (!is_value) {
      objects >>= 1;
      at++;
      if (--depth) at = skip_blanks(at, end);
    } else if (objects & 1) {
      if (at == end || *at != '"' || !(at = skip_text(s, at + 1, end))) return NULL;
      at = skip_blanks(at, end);
      if (at == end || *at != ':') return NULL;
      at = skip_blanks(at + 1, end);
    }
  }
  return at;
}

static const uint8_t *read_members(scan *s, int parent, const uint8_t *at, const uint8_t *end);

/* Read a value into its field, which is NULL if nobody wants it; return its end, or NULL. */
static inline const uint8_t *read_value(scan *s, int wanted, const uint8_t *at,
                                        const uint8_t *end) {
  field *to = wanted < 0 ? NULL : &s->fields[wanted];
  if (!to && at < end && (*at == '{' || *at == '[')) return skip_nested(s, at, end);
  if (!to || to->kind != OBJECT) return read_scalar(s, to, at, end);
  if (at < end && *at == '{') return read_members(s, wanted, at + 1, end);
  return is_word(at, end, "null", 4) ? at + 4 : NULL;
}

/* Read an object, behind its brace, into the fields of `parent`; return its end, or NULL. */
static const uint8_t *read_members(scan *s, int parent, const uint8_t *at, const uint8_t *end) {
  at = skip_blanks(at, end);
  if (at < end && *at == '}') return at + 1;
  for (;;) {
    int wanted;
    if (at == end || *at != '"' || !(at = read_name(s, parent, at + 1, end, &wanted))) return NULL;
    at = skip_blanks(at, end);
    if (at == end || *at++ != ':') return NULL;
    if (wanted >= 0) {
      if (s->seen >> wanted & 1) return NULL;
      s->seen |= UINT64_C(1) << wanted;
    }
    if (!(at = read_value(s, wanted, skip_blanks(at, end), end))) return NULL;
    at = skip_blanks(at, end);
    if (at == end || (*at != ',' && *at != '}')) return NULL;
    if (*at++ == '}') return at;
    at = skip_blanks(at, end);
  }
}

/* Read a value, which is an object; 0: it is left. */
static int read_object(scan *s, const uint8_t *at, const uint8_t *end) {
  const uint8_t *begin = at;
  s->seen = s->bytes = 0;
  s->place = 0;
  at = skip_blanks(at, end);
  if (at == end || *at++ != '{' || !(at = read_members(s, -1, at, end))) return 0;
  return skip_blanks(at, end) == end && (!(s->bytes & HIGH_BITS) || is_utf8(begin, end));
}

/* Make the row null again in all fields. */
static void clear_row(scan *s, const int64_t *used) {
  uint8_t others = (uint8_t)~(1u << (unsigned)(s->row % 8));
  for (int n = 0; n < s->count; n++) {
    field *it = &s->fields[n];
    if (it->kind == OBJECT) continue;
    it->used = used[n];
    it->valid[s->row / 8] &= others;
    if (it->kind == BOOLEAN) it->values[s->row / 8] &= others;
  }
}

/* Read the values at `starts` (rows + 1) in `data`; `present` has a bit a row from `first_bit` on,
 * or is NULL if no value is null. `is_left` gets a byte a row: 1 where the value is left. Returns
 * how many are left, or -1 if most of the first ones are: then nothing was gained. */
int64_t scan_json(const uint8_t *data, const int32_t *starts, const uint8_t *present,
                  int64_t first_bit, int64_t rows, field *fields, int32_t count,
                  uint8_t *is_left) {
  if (count > MOST_FIELDS) return -1;
  scan s = {.fields = fields, .count = count};
  int64_t left = 0, used[MOST_FIELDS];
  for (; s.row < rows; s.row++) {
    int64_t bit = first_bit + s.row;
    int is_null = present && !(present[bit / 8] >> (bit % 8) & 1);
    for (int n = 0; n < count; n++) used[n] = fields[n].used;
    is_left[s.row] = !is_null && !read_object(&s, data + starts[s.row], data + starts[s.row + 1]);
    if (is_left[s.row]) clear_row(&s, used);
    left += is_left[s.row];
    for (int n = 0; n < count; n++) {
      field *it = &fields[n];
      if (it->kind == OBJECT) continue;
      it->nulls += !(it->valid[s.row / 8] >> (s.row % 8) & 1);
      if (it->starts) it->starts[s.row + 1] = (int32_t)it->used;
    }
    if (s.row + 1 == TRIED && left > TRIED / 2) return -1;
  }
  return left;
}

/* The size of `field`, so that a caller can tell that it knows this file's layout. */
int64_t scan_field_size(void) { return (int64_t)sizeof(field); }

/* The digest of this file as build_native.py compiled it, so that a caller can tell an older library. */
#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif
const char *native_source_digest(void) { return SOURCE_DIGEST; }
