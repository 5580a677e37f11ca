/* serve_template.c: chats as the text that a model was trained on. A table of formats, no language:
 * what a client sends can only be quoted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve_ask.h"

typedef struct template
{
    const char *name;
    const char *before[3]; /* a message of system, user, assistant */
    const char *after[3];
    bool strip[3];       /* white space around what it says */
    const char *stop[2]; /* what ends the assistant's turn; NULL: nothing more */
}
template;

enum { SYSTEM, USER, ASSISTANT };

static const template templates[] = {
    /* Grok-2's, of its published tokenizer. */
    {"grok-2",
     {"System: ", "Human: ", "Assistant: "},
     {"<|separator|>\n\n", "<|separator|>\n\n", "<|separator|>\n\n"},
     {true, true, false},
     {"<|separator|>", NULL}},
    /* For base models: a transcript. */
    {"plain",
     {"", "User: ", "Assistant: "},
     {"\n\n", "\n\n", "\n\n"},
     {true, true, true},
     {"\nUser:", NULL}},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

bool oct_serve_template_known(const char *name, const char **names)
{
    *names = "grok-2, plain";
    for (int i = 0; i < N_TEMPLATES; i++)
        if (name && strcmp(templates[i].name, name) == 0)
            return true;
    return false;
}

/* A string that grows; NULL after memory was refused. */
typedef struct growing {
    char *text;
    size_t n, room;
} growing;

static bool put(growing *g, const char *text, size_t n)
{
    if (n + 1 > g->room - g->n) {
        size_t room = 2 * (g->n + n) + 256;
        char *more = realloc(g->text, room);
        if (!more)
            return false;
        g->text = more;
        g->room = room;
    }
    memcpy(g->text + g->n, text, n);
    g->n += n;
    g->text[g->n] = 0;
    return true;
}

static bool put_word(growing *g, const char *text)
{
    return put(g, text, strlen(text));
}

static int role_of(const json_t *message)
{
    static const struct {
        const char *name;
        int role;
    } roles[] = {
        {"system", SYSTEM}, {"developer", SYSTEM}, {"user", USER}, {"assistant", ASSISTANT}};
    const char *name = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(name, roles[i].name) == 0)
            return roles[i].role;
    return -1;
}

/* The text of a message: a string, or parts of type text, a line each; null says nothing. */
static bool put_content(growing *g, const json_t *content, size_t i, oct_serve_fault *f)
{
    if (!content)
        return true;
    if (json_is_string(content))
        return put(g, json_string_value(content), json_string_length(content)) ||
               oct_serve_refuse(f, 500, NULL, "", "out of memory");
    if (!json_is_array(content))
        return oct_serve_refuse(f, 400, NULL, "messages",
                                "messages[%zu].content: expected a string or parts", i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
            return oct_serve_refuse(f, 400, NULL, "messages",
                                    "messages[%zu].content[%zu]: a part of type '%.40s', only "
                                    "text is supported",
                                    i, k, type ? type : "none");
        if ((k > 0 && !put_word(g, "\n")) ||
            !put(g, json_string_value(text), json_string_length(text)))
            return oct_serve_refuse(f, 500, NULL, "", "out of memory");
    }
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Takes white space off both ends of what g has from `from` on. */
static void strip(growing *g, size_t from)
{
    size_t first = from;
    while (g->n > from && is_blank(g->text[g->n - 1]))
        g->n--;
    while (first < g->n && is_blank(g->text[first]))
        first++;
    if (g->text)
        memmove(g->text + from, g->text + first, g->n - first);
    g->n -= first - from;
}

static bool put_message(growing *g, const template *t, const json_t *m, size_t i, bool last,
                        oct_serve_fault *f)
{
    const int role = role_of(m);
    const json_t *calls = oct_serve_get(m, "tool_calls");
    if (role < 0)
        return oct_serve_refuse(f, 400, NULL, "messages",
                                "messages[%zu].role: expected system, developer, user or assistant",
                                i);
    if (json_array_size(calls) > 0 || oct_serve_get(m, "function_call"))
        return oct_serve_refuse(f, 400, NULL, "messages",
                                "messages[%zu].tool_calls: tools are not supported", i);
    if (!put_word(g, t->before[role]))
        return oct_serve_refuse(f, 500, NULL, "", "out of memory");
    const size_t from = g->n;
    if (!put_content(g, oct_serve_get(m, "content"), i, f))
        return false;
    /* What the assistant has begun is gone on with, as it stands. */
    const bool open = last && role == ASSISTANT;
    if (t->strip[role] && !open)
        strip(g, from);
    return open || put_word(g, t->after[role]) ||
           oct_serve_refuse(f, 500, NULL, "", "out of memory");
}

static bool put_all(growing *g, const template *t, const json_t *messages, oct_serve_fault *f)
{
    const size_t n = json_array_size(messages);
    for (size_t i = 0; i < n; i++)
        if (!put_message(g, t, json_array_get(messages, i), i, i == n - 1, f))
            return false;
    if (role_of(json_array_get(messages, n - 1)) == ASSISTANT)
        return true;
    const char *opening = t->before[ASSISTANT]; /* without the blank, which the answer brings */
    return put(g, opening, strlen(opening) - 1) ||
           oct_serve_refuse(f, 500, NULL, "", "out of memory");
}

static bool add_stops(const template *t, oct_serve_stops *stops, oct_serve_fault *f)
{
    for (int i = 0; i < 2 && t->stop[i]; i++) {
        if (stops->count == OCT_SERVE_STOPS)
            return oct_serve_refuse(f, 400, NULL, "stop", "stop: more than %d strings",
                                    OCT_SERVE_STOPS - 2);
        stops->text[stops->count] = strdup(t->stop[i]);
        if (!stops->text[stops->count])
            return oct_serve_refuse(f, 500, NULL, "", "out of memory");
        stops->n[stops->count++] = strlen(t->stop[i]);
    }
    return true;
}

bool oct_serve_template_apply(const char *name, const json_t *messages, char **text, size_t *n,
                              oct_serve_stops *stops, oct_serve_fault *f)
{
    const template *t = templates;
    growing g = {0};
    *text = NULL;
    *n = 0;
    while (strcmp(t->name, name) != 0)
        t++;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return oct_serve_refuse(f, 400, NULL, "messages",
                                "messages: expected a list of at least one message");
    if (!put_all(&g, t, messages, f) || (stops && !add_stops(t, stops, f))) {
        free(g.text);
        return false;
    }
    *text = g.text;
    *n = g.n;
    return true;
}
