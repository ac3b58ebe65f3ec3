/*
 * Strict readers and small encoders for text that crosses a boundary: numbers,
 * UTF-8, base64, hex, percent-escapes, names, times. Called by every program on bytes
 * from outside. All are pure, none reads past the length or the NUL it is given,
 * and each accepts exactly one spelling of a value, never a near miss.
 */
#include "common/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int text_parse_i64(const char *text, int64_t min, int64_t max, int64_t *value)
{
    if (!text)
        return -1;
    bool negative = *text == '-';
    const char *digits = text + negative;
    if (*digits == '\0' || (*digits == '0' && (digits[1] != '\0' || negative)))
        return -1;

    /* Gathered as a negative number: that side holds one value more. */
    int64_t sum = 0;
    for (const char *p = digits; *p; p++) {
        if (*p < '0' || *p > '9')
            return -1;
        int64_t digit = *p - '0';
        if (sum < (INT64_MIN + digit) / 10)
            return -1;
        sum = sum * 10 - digit;
    }
    if (!negative) {
        if (sum == INT64_MIN)
            return -1;
        sum = -sum;
    }
    if (sum < min || sum > max)
        return -1;
    *value = sum;
    return 0;
}

/* Length of the well-formed sequence at p (RFC 3629, section 4), 0 when there is none. */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80)
        return 1;

    size_t len;
    unsigned char second_min = 0x80;
    unsigned char second_max = 0xbf;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        if (p[0] == 0xe0)
            second_min = 0xa0; /* below: overlong */
        if (p[0] == 0xed)
            second_max = 0x9f; /* above: surrogates */
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        if (p[0] == 0xf0)
            second_min = 0x90; /* below: overlong */
        if (p[0] == 0xf4)
            second_max = 0x8f; /* above: past U+10FFFF */
    } else {
        return 0;
    }
    if (left < len || p[1] < second_min || p[1] > second_max)
        return 0;
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    return len;
}

size_t text_utf8_prefix(const void *data, size_t len)
{
    const unsigned char *bytes = data;
    size_t at = 0;

    while (at < len) {
        size_t step = utf8_sequence(bytes + at, len - at);
        if (step == 0)
            break;
        at += step;
    }
    return at;
}

char *text_base64(const void *data, size_t len)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = data;

    if (len > PTRDIFF_MAX / 4 * 3 - 3)
        return NULL;
    char *out = malloc((len + 2) / 3 * 4 + 1);
    if (!out)
        return NULL;
    char *to = out;
    size_t at = 0;
    for (; len - at >= 3; at += 3) {
        unsigned group = (unsigned)in[at] << 16 | (unsigned)in[at + 1] << 8 | in[at + 2];
        *to++ = alphabet[group >> 18];
        *to++ = alphabet[group >> 12 & 63];
        *to++ = alphabet[group >> 6 & 63];
        *to++ = alphabet[group & 63];
    }
    if (at < len) {
        bool two = len - at == 2;
        unsigned group = (unsigned)in[at] << 16 | (two ? (unsigned)in[at + 1] << 8 : 0);
        *to++ = alphabet[group >> 18];
        *to++ = alphabet[group >> 12 & 63];
        *to++ = (char)(two ? alphabet[group >> 6 & 63] : '=');
        *to++ = '=';
    }
    *to = '\0';
    return out;
}

void text_hex(const void *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *in = data;

    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * len] = '\0';
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

int text_percent_decode(char *text)
{
    const char *from = text;
    char *to = text;

    while (*from) {
        if (*from != '%') {
            *to++ = *from++;
            continue;
        }
        int high = hex_value(from[1]);
        int low = high < 0 ? -1 : hex_value(from[2]);
        if (low < 0 || (high == 0 && low == 0))
            return -1;
        *to++ = (char)(unsigned char)(high * 16 + low);
        from += 3;
    }
    *to = '\0';
    return to - text > INT_MAX ? -1 : (int)(to - text);
}

bool text_is_name(const char *text, size_t max)
{
    if (!text || text[0] < 'a' || text[0] > 'z')
        return false;
    size_t len = 0;
    for (; text[len]; len++) {
        char c = text[len];
        if (len == max || !((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'))
            return false;
    }
    return len > 0 && len <= max && text[len - 1] != '-';
}

/* Reads exactly `digits` digits; advances *text. -1 when there are fewer. */
static int read_digits(const char **text, unsigned digits)
{
    int value = 0;
    for (unsigned i = 0; i < digits; i++, (*text)++) {
        if (**text < '0' || **text > '9')
            return -1;
        value = value * 10 + (**text - '0');
    }
    return value;
}

static bool read_char(const char **text, char expected)
{
    if (**text != expected)
        return false;
    (*text)++;
    return true;
}

static bool read_date(const char **text)
{
    static const int days_in[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year = read_digits(text, 4);
    if (year < 1 || !read_char(text, '-'))
        return false;
    int month = read_digits(text, 2);
    if (month < 1 || month > 12 || !read_char(text, '-'))
        return false;
    int day = read_digits(text, 2);
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return day >= 1 && day <= days_in[month - 1] + (month == 2 && leap);
}

static bool read_clock(const char **text)
{
    int hour = read_digits(text, 2);
    if (hour < 0 || hour > 23 || !read_char(text, ':'))
        return false;
    int minute = read_digits(text, 2);
    if (minute < 0 || minute > 59 || !read_char(text, ':'))
        return false;
    int second = read_digits(text, 2);
    if (second < 0 || second > 59)
        return false;
    if (!read_char(text, '.'))
        return true;
    size_t digits = strspn(*text, "0123456789");
    *text += digits;
    return digits >= 1 && digits <= 9;
}

static bool read_offset(const char **text)
{
    if (read_char(text, 'Z'))
        return true;
    if (!read_char(text, '+') && !read_char(text, '-'))
        return false;
    int hour = read_digits(text, 2);
    if (hour < 0 || hour > 14 || !read_char(text, ':'))
        return false;
    int minute = read_digits(text, 2);
    return minute >= 0 && minute <= 59;
}

bool text_is_time(const char *text)
{
    return read_date(&text) && read_char(&text, 'T') && read_clock(&text) && read_offset(&text) &&
           *text == '\0';
}
